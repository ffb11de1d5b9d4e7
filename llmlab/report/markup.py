"""Markup: a report as HTML elements, the same in the file that is passed on and on the compare page."""

from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from llmlab.report.charts import Chart, Key, charts
from llmlab.report.document import Report, Table
from llmlab.report.experiments import experiment_table
from llmlab.report.plot import marker_path
from llmlab.report.rows import experiment_rows
from llmlab.report.shape_table import shape_table
from llmlab.report.tables import difference_table, prediction_table, run_line

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
    if not links:
        yield _findings(report)
    yield _runs(report, links)
    yield _table(difference_table(report))
    drawn = {chart.name: chart for chart in charts(report)}
    for experiment, rows in experiment_rows(report.rows).items():
        yield _table(experiment_table(report.sides, experiment, rows))
        figures = "".join(_chart(drawn[name]) for name in CHARTS_OF.get(experiment, ()) if name in drawn)
        yield f'<div class="charts">{figures}</div>'
    yield _table(shape_table(report))
    yield _table(prediction_table(report))
    if links:
        yield _findings(report)


def _findings(report: Report) -> str:
    found = [(side.label, " ".join(side.findings)) for side in report.sides if side.findings]
    if len(report.sides) > 1:
        texts = (f"<p><strong>{escape(label)}.</strong> {escape(text)}</p>" for label, text in found)
    else:
        texts = (f"<p>{escape(text)}</p>" for _, text in found)
    return _section("Findings", "".join(texts), "findings") if found else ""


def _runs(report: Report, links: Sequence[str]) -> str:
    lines = [escape(run_line(side)) for side in report.sides]
    if links:
        lines = [f'<a href="{escape(link)}">{line}</a>' for line, link in zip(lines, links, strict=True)]
    return _section("Runs", f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>") if lines else ""


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(f"<th scope='col'{_side(table, i)}>{escape(text)}</th>" for i, text in enumerate(table.columns))
    rows = "".join(f"<tr>{''.join(_cell(table, i, text) for i, text in enumerate(row))}</tr>" for row in table.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return _section(
        table.title,
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        + (f'<ul class="notes">{notes}</ul>' if notes else ""),
    )


def _cell(table: Table, index: int, text: str) -> str:
    if index == 0:
        return f"<th scope='row'{_side(table, 0)}>{escape(text)}</th>"
    return f"<td{_side(table, index)}>{_marked(text) if index in table.left else escape(text)}</td>"


def _marked(text: str) -> str:
    look = next((look for words, look in LOOKS.items() if text.startswith(words)), None)
    return f'<span class="{look}">{escape(text)}</span>' if look else escape(text)


def _side(table: Table, index: int) -> str:
    return "" if index in table.left else ' class="figure"'


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
