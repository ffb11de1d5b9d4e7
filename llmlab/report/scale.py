"""Scale: how one figure of a report is drawn: one run in the unit of the figure, several ÷ their first values."""

from collections.abc import Callable, Sequence

from llmlab.cells import Cell
from llmlab.figures import format_count, format_range, format_ratio, format_value
from llmlab.report.document import Report
from llmlab.report.facts import Mark
from llmlab.report.plot import Axis, Point, Series, round_ticks
from llmlab.report.rows import Row

NAMES = {
    "ttft_ns": "Time to first token",
    "prefill_tokens_per_s": "Prefill speed",
    "decode_tokens_per_s": "Decode speed",
    "user_tokens_per_s": "Decode speed as the user sees it",
    "total_tokens_per_s": "Total speed of all users",
}
SECONDS_FROM_NS = 2e8
"""Axes whose largest value is below this are in milliseconds."""


class Scale:
    """`single` tells whether there is one run, drawn in raw values; `rows` are those that have the figure `name`."""

    def __init__(self, report: Report, experiment: str, name: str) -> None:
        of_experiment = [row for row in report.rows if row.experiment == experiment]
        self.name = name
        self.labels = [side.label for side in report.sides]
        self.single = len(report.sides) == 1
        self.rows = [row for row in of_experiment if any(v is not None for v in row.values(name))]
        self.unit, self.divisor = _unit(name, self.rows)
        self.bases = [_first(self.rows, i, name) for i in range(len(report.sides))]

    def points(
        self, index: int, x: Callable[[Row, Cell], float | None], where: Callable[[float], str], name: str | None = None
    ) -> list[Point]:
        """The points of one run from left to right; `name` is another figure of the same unit."""
        name = name or self.name
        found = [
            self.point(index, row, cell, place, where(place), name)
            for row in self.rows
            if (cell := row.cells[index]) and name in cell.figures
            if (place := x(row, cell)) is not None
        ]
        return sorted(found, key=lambda p: p.x)

    def point(self, index: int, row: Row, cell: Cell, x: float, where: str, name: str) -> Point:
        """One value with its range; the text on hover has the raw figures, whatever is drawn."""
        figure = cell.figures[name]
        raw = f"{self.labels[index]}, {where}: {format_value(name, figure.median)}"
        spread = f" ({format_range(name, figure)}, n = {figure.n})" if figure.n > 1 else ""
        base, label = self._base(index), format_value(name, figure.median)
        if not self.single:
            label = format_ratio(figure.median / base)
            spread += f", {label} its first row"
        return Point(
            x=x,
            y=figure.median / base,
            low=figure.min / base,
            high=figure.max / base,
            tip=f"{raw}{spread}{'' if row.mark is Mark.ok else f' – {row.verdict}'}",
            label=label.removesuffix(" tok/s"),
            hollow=row.mark is Mark.no,
        )

    def axis(self, series: Sequence[Series], room: float = 1.1) -> Axis:
        """The axis from 0 over all points and whiskers, with `room` as a factor for what is printed beyond them."""
        most = max((max(p.y, p.high or 0) for s in series for p in s.points), default=0)
        title = NAMES.get(self.name, self.name)
        if self.single:
            return Axis(title=f"{title}, {self.unit}", ticks=round_ticks(most), show=tick_text, end=most * room)
        return Axis(title=f"{title} ÷ first row", ticks=round_ticks(most), show=times_text, end=most * room)

    def _base(self, index: int) -> float:
        return self.divisor if self.single else self.bases[index] or self.divisor


def tick_text(value: float) -> str:
    return format_count(value) if value == round(value) else f"{value:g}"


def times_text(value: float) -> str:
    return f"{tick_text(value)}×"


def _unit(name: str, rows: Sequence[Row]) -> tuple[str, float]:
    if not name.endswith("_ns"):
        return "tok/s", 1
    most_ns = max((v for row in rows for v in row.values(name) if v is not None), default=0)
    return ("s", 1e9) if most_ns >= SECONDS_FROM_NS else ("ms", 1e6)


def _first(rows: Sequence[Row], index: int, name: str) -> float | None:
    return next((v for row in rows if (v := row.values(name)[index])), None)
