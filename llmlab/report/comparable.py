"""May a row be compared: the mark it carries and the reasons for it."""

from collections.abc import Iterator, Sequence

from llmlab.cells import Cell
from llmlab.report.facts import Fact, Mark
from llmlab.report.side import Side, plain

FEW = 3
"""Fewer samples than this are a caution."""
LENGTH_TOLERANCE = 0.10
"""Prompts whose token counts are further apart than this are not the same size."""


def mark_row(
    cells: Sequence[Cell | None], sides: Sequence[Side], known: Sequence[Fact]
) -> tuple[Mark, tuple[str, ...]]:
    """The mark of one row and the reasons for it, the gravest first; `cells` holds one cell, or None, per side."""
    experiment = next(c.experiment for c in cells if c)
    about = [f for f in known if f.mark is not Mark.ok and (not f.experiments or experiment in f.experiments)]
    if refusals := [*_row_refusals(cells, sides), *(f.why for f in about if f.mark is Mark.no)]:
        return Mark.no, tuple(dict.fromkeys(refusals))
    cautions = [*_row_cautions(cells), *(f.why for f in about)]
    return (Mark.caution, tuple(dict.fromkeys(cautions))) if cautions else (Mark.ok, ())


def _row_refusals(cells: Sequence[Cell | None], sides: Sequence[Side]) -> Iterator[str]:
    for cell, side in zip(cells, sides, strict=True):
        if cell is None:
            yield f"not measured by {side.label}"
        elif not cell.n and not cell.refused:
            yield f"nothing good from {side.label}"
    there = [c for c in cells if c]
    if len({c.cut in ("proved", "suspected") for c in there if c.n}) > 1:
        yield "cut on one side"
    if len({c.reloaded for c in there if c.n}) > 1:
        yield "reloaded on one side"
    if there[0].experiment == "overflow":
        windows = {c.num_ctx_loaded or s.window for c, s in zip(cells, sides, strict=True) if c}
        if len(windows) > 1:
            yield "other window"
    elif there[0].experiment != "users":
        lengths = [length for c in there if (length := c.median("prompt_tokens"))]
        if lengths and max(lengths) > (1 + LENGTH_TOLERANCE) * min(lengths):
            yield "other prompt length"


def _row_cautions(cells: Sequence[Cell | None]) -> Iterator[str]:
    there = [c for c in cells if c]
    if any(c.n < FEW for c in there if c.n):
        yield f"n = {' / '.join(str(n) for n in _once([c.n for c in there]))}"
    if failed := [c.failed for c in there if c.failed]:
        yield f"{sum(failed)} failed"
    if any(c.reloaded for c in there):
        yield "reloaded"
    for flag in dict.fromkeys(flag for c in there for flag in c.flags if flag != "reloaded"):
        yield plain(flag).replace("_", " ")


def _once(values: list[int]) -> list[int]:
    return values[:1] if len(set(values)) == 1 else values
