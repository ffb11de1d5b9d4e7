"""Markup: a report as HTML elements, the same in the file that is passed on and on the compare page."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from llmlab.report.charts import Chart, Key, charts
from llmlab.report.document import Lines, Report, Table
from llmlab.report.experiments import TITLES
from llmlab.report.plot import marker_path
from llmlab.report.tables import blocks

CHARTS_OF = {
    "prompt_length": ("ttft", "speeds"),
    "repeat_prompt": ("cold_warm",),
    "users": ("users",),
    "overflow": ("window",),
}
LOOKS = {
    "ok": "good",
    "same shape": "good",
    "caution": "careful",
    "can't tell": "careful",
    "not comparable": "bad",
    "differs": "bad",
}
"""How a mark or a verdict looks, by the words it starts with."""


@cache
def styles() -> str:
    """The style sheet that the elements need, to be put into a page."""
    return "".join(files("llmlab.report").joinpath(name).read_text("utf-8") for name in ("report.css", "charts.css"))


def body(report: Report, links: Sequence[str] = ()) -> str:
    """The report as one element: findings, what differs, tables with their charts, shape, what to expect.

    `links` has an address per run, to be linked from its line; then what differs comes first and the findings last.
    """
    return f'<div class="llmlab report">{"".join(_parts(report, links))}</div>'


def _parts(report: Report, links: Sequence[str]) -> Iterator[str]:
    found = blocks(report)
    runs, rest = found[:1], found[1:]
    if not found:
        yield "<p>There is no bench run to report yet. Measure one with: <code>llmlab bench --tag laptop</code></p>"
    findings = [block for block in rest if isinstance(block, Lines) and block.title.startswith("Findings")]
    if not links:
        yield _findings(findings)
    yield from (_section(block.title, _lines(block.lines, links)) for block in runs if isinstance(block, Lines))
    drawn = {chart.name: chart for chart in charts(report)}
    for block in rest:
        if isinstance(block, Table):
            yield _section(block.title, _table(block))
            yield _charts(drawn.get(name) for name in CHARTS_OF.get(_experiment(block), ()))
        elif block not in findings:
            yield _section(block.title, _lines(block.lines))
    if links:
        yield _findings(findings)


def _experiment(table: Table) -> str:
    """The experiment whose measurements a table holds; its title starts with the experiment's."""
    return next((name for name, title in TITLES.items() if table.title.partition(":")[0] == title), "")


def _findings(found: Sequence[Lines]) -> str:
    """A paragraph per run, with its name in front where there are several."""
    if not found:
        return ""
    names = [block.title.partition(": ")[2] for block in found]
    texts = [escape(" ".join(block.lines)) for block in found]
    named = [
        f"<strong>{escape(name)}.</strong> {text}" if name else text for name, text in zip(names, texts, strict=True)
    ]
    return _section("Findings", "".join(f"<p>{text}</p>" for text in named), "findings")


def _lines(lines: Sequence[str], links: Sequence[str] = ()) -> str:
    items = [escape(line) for line in lines]
    if links:
        items = [f'<a href="{escape(link)}">{item}</a>' for item, link in zip(items, links, strict=True)]
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_side(table, i)}>{escape(text)}</th>' for i, text in enumerate(table.columns))
    rows = "".join(f"<tr>{''.join(_cell(table, i, text) for i, text in enumerate(row))}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<div class="notes">{_lines(table.notes)}</div>'
    )


def _cell(table: Table, index: int, text: str) -> str:
    if index == 0:
        return f'<th scope="row"{_side(table, 0)}>{escape(text)}</th>'
    return f"<td{_side(table, index)}>{_marked(text) if index in table.left else escape(text)}</td>"


def _marked(text: str) -> str:
    look = next((look for words, look in LOOKS.items() if text.startswith(words)), None)
    return f'<span class="{look}">{escape(text)}</span>' if look else escape(text)


def _side(table: Table, index: int) -> str:
    return "" if index in table.left else ' class="figure"'


def _charts(found: Iterable[Chart | None]) -> str:
    figures = "".join(_chart(chart) for chart in found if chart)
    return f'<div class="charts">{figures}</div>' if figures else ""


def _chart(chart: Chart) -> str:
    keys = "".join(map(_key, chart.keys))
    legend = f'<ul class="keys">{keys}</ul>' if keys else ""
    caption = f"<figcaption><strong>{escape(chart.title)}</strong> {escape(chart.caption)}{legend}</figcaption>"
    panels = "".join(chart.panels)
    return f'<figure class="chart" data-chart="{chart.name}">{caption}<div class="panels">{panels}</div></figure>'


def _key(key: Key) -> str:
    """A sample of the line or the area, and what it stands for."""
    if key.marker is None:
        sample = '<g class="bar"><rect x="2" y="3" width="28" height="10"/></g>'
    else:
        sample = f'<path class="line" d="M1 8h30"/><g class="dots"><path d="{marker_path(key.marker, 16, 8)}"/></g>'
    svg = f'<svg viewBox="0 0 32 16" aria-hidden="true"><g class="series {key.classes}">{sample}</g></svg>'
    return f"<li>{svg}{escape(key.label)}</li>"


def _section(title: str, content: str, classes: str = "") -> str:
    return f'<section class="{classes}"><h2>{escape(title)}</h2>{content}</section>'
