"""Charts: the five pictures of a report; raw values of one run, each run divided by its own first row for several."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmlab.report.document import Report
from llmlab.report.facts import Mark
from llmlab.report.panels import prompt_panel, repeat_panel, run_class, staircase_panel, users_panel
from llmlab.report.shape import decode_figure
from llmlab.report.window_picture import PARTS, window_bars, window_panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry of a legend: `classes` are those of its series in the panels; `marker` None stands for an area."""

    label: str
    classes: str
    marker: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture of one panel or more, each an SVG element; `caption` says how to read it."""

    name: str
    title: str
    caption: str
    panels: Sequence[str]
    keys: Sequence[Key] = ()


def charts(report: Report) -> list[Chart]:
    """The charts for which there are measurements: TTFT and speeds against prompt, users, cold and warm, window."""
    found = (waits(report), speeds(report), users(report), cold_warm(report), window(report))
    return [chart for chart in found if chart.panels]


def waits(report: Report) -> Chart:
    return Chart(
        name="ttft",
        title="How long a prompt makes you wait",
        caption=_caption(report, "A straight line is a fixed price per token; one that bends upwards gets dearer."),
        panels=_there([prompt_panel(report, "ttft_ns")]),
        keys=_runs(report),
    )


def speeds(report: Report) -> Chart:
    return Chart(
        name="speeds",
        title="How fast it reads and writes as the prompt grows",
        caption=_caption(report, "A level line does not mind the length; a falling one slows down with it."),
        panels=_there(prompt_panel(report, f) for f in ("prefill_tokens_per_s", decode_figure(report.sides))),
        keys=_runs(report),
    )


def users(report: Report) -> Chart:
    single = [
        Key(label="median user", classes=run_class(0), marker=0),
        Key(label="last user", classes=f"{run_class(0)} worst", marker=0),
    ]
    return Chart(
        name="users",
        title="What happens when users come at once",
        caption=_caption(report, "Where the total stops growing, more users only wait; the stairs show who waits."),
        panels=_there(
            [users_panel(report, "ttft_ns"), users_panel(report, "total_tokens_per_s"), staircase_panel(report)]
        ),
        keys=_runs(report) or single,
    )


def cold_warm(report: Report) -> Chart:
    return Chart(
        name="cold_warm",
        title="Cold against warm",
        caption=_caption(report, "What a bar lacks of the first one is what the server's cache saves."),
        panels=_there([repeat_panel(report)]),
        keys=_runs(report),
    )


def window(report: Report) -> Chart:
    rows = [row for row in report.rows if row.experiment == "overflow"]
    bars = [window_bars(rows, i) for i in range(len(report.sides))]
    parts = {name for run in bars for _, _, parts in run for name in parts}
    alone = len(report.sides) == 1
    return Chart(
        name="window",
        title="What was inside the window when the word was asked for",
        caption="Each bar is one conversation; nothing beyond the dashed line can be read.",
        panels=_there(window_panel(side, run, alone=alone) for side, run in zip(report.sides, bars, strict=True)),
        keys=[Key(label=words, classes=name, marker=None) for name, words in PARTS.items() if name in parts],
    )


def _caption(report: Report, text: str) -> str:
    if len(report.sides) == 1:
        return text
    hollow = " Hollow dots may not be compared." if any(row.mark is Mark.no for row in report.rows) else ""
    return f"Each run is divided by its own first row: compare the shapes. {text}{hollow}"


def _runs(report: Report) -> list[Key]:
    if len(report.sides) == 1:
        return []
    return [Key(label=side.label, classes=run_class(i), marker=i) for i, side in enumerate(report.sides)]


def _there(panels: Iterable[str | None]) -> list[str]:
    return [panel for panel in panels if panel]
