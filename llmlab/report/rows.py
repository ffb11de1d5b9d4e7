"""Rows: the cells of several runs that belong together, each row with its mark."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmlab.cells import Cell, order
from llmlab.report.comparable import mark_row
from llmlab.report.facts import Fact, Mark
from llmlab.report.side import Key, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One (experiment, variant, size) of all runs: `cells` has one cell, or None, per side."""

    key: Key
    cells: tuple[Cell | None, ...]
    mark: Mark
    why: tuple[str, ...]

    @property
    def experiment(self) -> str:
        return self.key[0]

    @property
    def verdict(self) -> str:
        """`ok`, `caution: n = 1`, `not comparable: other window`."""
        return f"{self.mark}: {', '.join(self.why)}" if self.why else str(self.mark)

    def values(self, name: str) -> list[float | None]:
        """The medians of a figure, one per side."""
        return [cell.median(name) if cell else None for cell in self.cells]


def rows(sides: Sequence[Side], known: Sequence[Fact]) -> list[Row]:
    """The rows of all runs in the order of the lesson; a cell that a run does not have is None."""
    found = []
    for key in sorted({key for side in sides for key in side.cells}, key=lambda key: order(*key)):
        cells = tuple(side.cells.get(key) for side in sides)
        mark, why = mark_row(cells, sides, known)
        found.append(Row(key=key, cells=cells, mark=mark, why=why))
    return found


def experiment_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each experiment, experiments in the order of the rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.experiment, []).append(row)
    return found
