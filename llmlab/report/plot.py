"""Plots: pygal's scales and shapes as one clean SVG each, without script, style or id; `charts.css` gives the looks."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any
from xml.etree import ElementTree

import pygal
from pygal.style import Style

# pygal leaves a finder for its own plugins behind, of which Python warns at every later import; there are none here.
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]

LINES_PX = (372, 250)
BARS_PX = 560
TEXT_PX = 13
NAME_PX = 20
NAME_CHARS = 80
BAR_PX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value: `tip` is shown on hover, `label` is printed beside it; `low` and `high` are whiskers.

    A `hollow` dot stands for a value that may not be compared.
    """

    x: float
    y: float
    tip: str = ""
    label: str = ""
    low: float | None = None
    high: float | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one style: `classes` are CSS classes, `marker` picks the shape of the dots, None draws none.

    Labels stand above the dots, or `below` them.
    """

    points: Sequence[Point]
    classes: str = ""
    marker: int | None = 0
    line: bool = True
    below: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """`title` with its unit; `ticks` are labelled by `show`, one may be `strong`; ends at the last one or at `end`."""

    title: str
    ticks: Sequence[float]
    show: Callable[[float], str]
    end: float | None = None
    strong: float | None = None

    @property
    def range(self) -> tuple[float, float]:
        return min(self.ticks), max(*self.ticks, self.end or 0)


def round_ticks(most: float, steps: int = 4) -> list[float]:
    """Round numbers from 0 to at least `most`, about `steps` intervals."""
    if most <= 0:
        return [0, 1]
    rough = most / steps
    power = 10.0 ** floor(log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    return [float(f"{i * step:.12g}") for i in range(ceil(most * 0.999 / step) + 1)]


def thin_ticks(values: Iterable[float]) -> list[float]:
    """0 and the values that are far enough apart to carry a label each; the largest always does."""
    found = sorted(set(values))
    most = found[-1] if found else 1.0
    kept = [most]
    for value in reversed(found[:-1]):
        if kept[-1] - value >= 0.07 * most and value >= 0.05 * most:
            kept.append(value)
    return [0.0, *reversed(kept)]


def line_plot(series: Sequence[Series], x: Axis, y: Axis, described: str) -> str:
    """Lines over a numeric axis. `described` is the text for those who cannot see the picture."""
    chart = _Lines(**_settings(x, y), xrange=x.range, range=y.range, show_x_guides=False, dots_size=4.5)
    chart.x_labels = list(x.ticks)
    chart.x_value_formatter = x.show
    chart.y_labels = [{"value": tick, "label": y.show(tick)} for tick in y.ticks]
    for s in series:
        values = [{**_value((p.x, p.y), p), "below": s.below} for p in s.points]
        chart.add("", values, show_dots=s.marker is not None, stroke=s.line)
    return _svg(chart, series, described, "lines")


def bar_plot(
    series: Sequence[Series],
    names: Sequence[str],
    x: Axis,
    described: str,
    *,
    title: str | None = None,
    stacked: bool = False,
) -> str:
    """Bars from left to right, one group per name from the top down; a point's `x` is its place in `names`."""
    in_group = 1 if stacked else len(series)
    height = 52 + (24 if title else 0) + len(names) * (2 * NAME_PX + in_group * BAR_PX)
    settings = {
        **_settings(x, x),
        "width": BARS_PX,
        "height": height,
        "title": title,
        "x_title": x.title,
        "show_y_labels": False,
    }
    chart = (_StackedBars if stacked else _Bars)(**settings, range=x.range, print_values_position="top")
    chart.bars_in_group = in_group
    chart.x_labels = list(reversed(names))
    chart.y_labels = [{"value": tick, "label": x.show(tick)} for tick in x.ticks]
    if x.strong is not None:
        chart.y_labels_major = [x.strong]
    for s in series:
        found = {int(p.x): p for p in s.points}
        places = range(len(names) - 1, -1, -1)
        chart.add("", [_value(found[i].y, found[i]) if i in found else None for i in places])
    return _svg(chart, series, described, "bars")


def _settings(x: Axis, y: Axis) -> dict[str, Any]:
    """Text sizes are what pygal leaves room for; the style sheet sets the same."""
    sizes = dict.fromkeys(("label", "major_label", "value", "title"), TEXT_PX)
    return {
        "style": Style(font_family="sans-serif", **{f"{name}_font_size": px for name, px in sizes.items()}),
        "width": LINES_PX[0],
        "height": LINES_PX[1],
        "show_legend": False,
        "print_labels": True,
        "title": y.title,
        "x_title": x.title,
        "js": [],
        "margin": 8,
        "margin_right": 22,
        "truncate_label": -1,
    }


def _value(value: Any, point: Point) -> dict[str, Any]:
    found = {"value": value, "label": point.label, "formatter": lambda _: point.tip}
    if point.low is not None and point.high is not None and point.high > point.low:
        found["ci"] = {"low": point.low, "high": point.high}
    if point.hollow:
        found["node"] = {"class": "hollow"}
    return found


class _Plain:
    """What every plot does otherwise than pygal: title on the left, hover text without script, no chance majors."""

    def _make_title(self: Any) -> None:
        for line in self._title[:1]:
            text = self.svg.node(self.nodes["title"], "text", class_="plot_title", x=0, y=TEXT_PX + 4)
            text.text = line if len(self._title) == 1 else f"{line}…"

    def _compute_y_labels_major(self: Any) -> None:
        self._y_labels_major = list(self.y_labels_major or ())

    def _tooltip_data(self: Any, node: Any, value: str, *_: Any, **__: Any) -> None:
        if value:
            self.svg.node(node, "title").text = value


class _Lines(_Plain, pygal.XY):  # type: ignore[misc]
    def _confidence_interval(self: Any, node: Any, x: float, y: float, value: Any, metadata: Any) -> None:
        # pygal hands over the pair (x, y), of which it can make no interval.
        super()._confidence_interval(node, x, y, value[1], metadata)

    def _static_value(self: Any, serie_node: Any, value: str, x: float, y: float, metadata: Any, *_: Any) -> None:
        """Above or below the dot and its whisker; left of the dot where there is no room above."""
        label = (metadata or {}).get("label")
        if not label:
            return
        x, y = x - self.style.value_font_size, y - self.style.value_font_size
        top, bottom = (self.view.y(metadata["ci"][end]) if "ci" in metadata else y for end in ("high", "low"))
        x, y, anchor = (x, top - 9, "middle") if top > 10 else (x - 12, y + 4.5, "end")
        if metadata["below"]:
            x, y, anchor = x, bottom + 19, "middle"
        text = self.svg.node(serie_node["text_overlay"], "text", class_="value", x=x, y=y)
        text.set("text-anchor", anchor)
        text.text = label


class _Across(_Plain):
    """Bars with the name of a group above it, from the left edge, where no name is too long."""

    bars_in_group = 1

    @property
    def _series_margin(self) -> float:
        return NAME_PX / (2 * NAME_PX + BAR_PX * self.bars_in_group)

    def _y_axis(self: Any) -> None:
        axis = self.svg.node(self.nodes["text_overlay"], class_="axis names")  # above the lines of the other axis
        for name, position in self._y_labels:
            top = position + (0.5 - self._series_margin) / len(self._y_labels)
            shown = name if len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}…"
            self.svg.node(axis, "text", x=self.view.x(0), y=self.view.y(top) - 6).text = shown

    def _static_value(self: Any, serie_node: Any, value: str, x: float, y: float, metadata: Any, *_: Any) -> None:
        if label := (metadata or {}).get("label"):
            if "ci" in metadata:
                x = self.view.y(metadata["ci"]["high"]) + self.style.value_font_size / 2
            self.svg.node(serie_node["text_overlay"], "text", class_="value", x=x, y=y + 4.5).text = label


class _Bars(_Across, pygal.HorizontalBar):  # type: ignore[misc]
    pass


class _StackedBars(_Across, pygal.HorizontalStackedBar):  # type: ignore[misc]
    pass


def _svg(chart: Any, series: Sequence[Series], described: str, kind: str) -> str:
    """The chart's tree with our classes and markers, and nothing that it does not need."""
    root = _cleaned(chart.render_tree(), series, None)
    assert root is not None
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": root.attrib["viewBox"],
        "width": root.attrib["viewBox"].split()[2],
        "class": f"plot-{kind}",
        "role": "img",
        "aria-label": described,
    }
    return ElementTree.tostring(root, encoding="unicode")


def _cleaned(node: Any, series: Sequence[Series], inside: Series | None) -> ElementTree.Element | None:
    """A copy without pygal's style, script, ids, tooltips and backgrounds; None where nothing is left."""
    if not isinstance(node.tag, str):
        return None
    tag = node.tag.rpartition("}")[2]
    classes = str(node.get("class", ""))
    if tag in ("defs", "script", "style", "desc") or classes in ("tooltip", "background"):
        return None
    if found := re.fullmatch(r"series serie-(\d+) color-\d+", classes):
        inside = series[int(found[1])]
        classes = f"series {inside.classes}"
    copy = ElementTree.Element(tag)
    if (tag == "title" and inside is None) or (classes == "bar" and _is_empty(node)):
        return None
    if tag == "circle" and inside:
        return _marker(inside.marker or 0, float(node.get("cx")), float(node.get("cy")), node.get("class"))
    copy.attrib.update({k: _rounded(v) for k, v in node.attrib.items() if k in GEOMETRY})
    if kept := " ".join(
        word for word in classes.split() if word in KEPT or (inside and word in inside.classes.split())
    ):
        copy.set("class", kept)
    copy.text = node.text
    copy.extend(child for n in node if (child := _cleaned(n, series, inside)) is not None)
    return None if tag == "g" and not len(copy) else copy


GEOMETRY = ("d", "x", "y", "width", "height", "viewBox", "transform", "text-anchor")
KEPT = frozenset(
    (
        *("axis", "x", "y", "names", "line", "guide", "major"),
        *("title", "plot_title", "series", "value", "bar", "dots", "ci"),
    )
)


def _is_empty(bar: Any) -> bool:
    """In a stack pygal draws what is not there as a bar of no width."""
    return all(float(node.get("width", 0)) == 0 for node in bar if isinstance(node.tag, str) and "width" in node.attrib)


def _rounded(numbers: str) -> str:
    """Tenths of a pixel are enough."""
    return re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), numbers)


def _marker(shape: int, x: float, y: float, classes: str) -> ElementTree.Element:
    marker = ElementTree.Element("path", d=marker_path(shape, x, y))
    if "hollow" in classes.split():
        marker.set("class", "hollow")
    return marker


def marker_path(shape: int, x: float, y: float) -> str:
    """Circle, square, diamond, triangle: runs differ by shape too, for eyes and printers that see no colour."""
    paths = (
        "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
        "m-4 -4h8v8h-8z",
        "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
        "m0 -5.5l5.2 9.5h-10.4z",
    )
    return _rounded(f"M{float(x)} {float(y)}") + paths[shape % len(paths)]
