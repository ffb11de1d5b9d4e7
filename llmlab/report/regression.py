"""Regression: whether the second run is worse than the first by more than the user allows."""

from collections.abc import Iterator

from llmlab.cells import Cell
from llmlab.errors import UsageError
from llmlab.figures import Figure, format_percent, format_value
from llmlab.report.comparable import FEW
from llmlab.report.document import Report
from llmlab.report.experiments import TITLES, row_name
from llmlab.report.facts import Mark
from llmlab.report.rows import Row
from llmlab.report.side import Side
from llmlab.report.verdict import TOLERANCE

SLOWER = ("ttft_ns", "ttft_worst_ns")
FASTER = ("prefill_tokens_per_s", "decode_tokens_per_s", "user_tokens_per_s", "total_tokens_per_s")
NAMES = {
    "ttft_ns": "first token",
    "ttft_worst_ns": "worst first token",
    "prefill_tokens_per_s": "prefill",
    "decode_tokens_per_s": "decode",
    "user_tokens_per_s": "speed seen",
    "total_tokens_per_s": "total",
}


def check_same(report: Report) -> None:
    """UsageError unless the report is of two runs of one machine and one digest with a row to compare."""
    if len(report.sides) != 2:
        raise UsageError(f"--fail-on-regression compares two runs, not {len(report.sides)}", "Name two tags or run ids")
    before, after = report.sides
    if not before.run.machine_id or before.run.machine_id != after.run.machine_id:
        raise UsageError(f"{before.label} and {after.label} are not the same machine", "A regression needs one machine")
    digests = {side.model.digest if side.model else None for side in report.sides}
    if None in digests or len(digests) > 1:
        raise UsageError(f"{before.label} and {after.label} are not known to be the same weights", "Bench one model")
    if not any(row.mark is not Mark.no or _broke(row) for row in report.rows):
        raise UsageError(f"{before.label} and {after.label} have no comparable row", "Bench both in the same way")


def regressions(report: Report, percent: float) -> list[str]:
    """What became worse by more than `percent`, a line each: the first run is the one to hold on to.

    A figure counts only where the ranges of both runs are apart; a range of few samples is first widened by the noise.
    A row that no longer has a good answer counts too.
    """
    return [line for row in report.rows for line in _of_row(row, report.sides[0], report.sides[1], percent / 100)]


def _of_row(row: Row, before: Side, after: Side, limit: float) -> Iterator[str]:
    name = f"{TITLES.get(row.experiment, row.experiment)}, {row_name(row)}"
    if _broke(row):
        yield f"{name}: no good answer any more"
    a, b = row.cells
    if row.mark is Mark.no or a is None or b is None:
        return
    for figure in (*SLOWER, *FASTER):
        old, new = a.figures.get(figure), b.figures.get(figure)
        if old and new and _is_worse(figure, old, new, limit, max(_noise(before), _noise(after))):
            change = format_percent(new.median / old.median - 1, sign=True)
            values = f"{format_value(figure, old.median)} → {format_value(figure, new.median)}"
            yield f"{name}: {NAMES[figure]} {values} ({change})"


def _broke(row: Row) -> bool:
    """Whether the first run has good answers and the second only failures."""
    a, b = row.cells
    return _good(a) and b is not None and not _good(b)


def _good(cell: Cell | None) -> bool:
    return cell is not None and (cell.n > 0 or cell.refused > 0)


def _is_worse(name: str, old: Figure, new: Figure, limit: float, noise: float) -> bool:
    if old.median <= 0 or new.median <= 0:
        return False
    (old_low, old_high), (new_low, new_high) = (_range(figure, noise) for figure in (old, new))
    if name in SLOWER:
        return new.median / old.median > 1 + limit and new_low > old_high
    return new.median / old.median < 1 - limit and new_high < old_low


def _range(figure: Figure, noise: float) -> tuple[float, float]:
    return (figure.min, figure.max) if figure.n >= FEW else (figure.min / (1 + noise), figure.max * (1 + noise))


def _noise(side: Side) -> float:
    """The noise floor, half of the shape's tolerance where it was not measured."""
    return TOLERANCE / 2 if side.noise is None else side.noise
