"""Document: a report as titled tables and lines of text, which every format for people prints."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmlab.report.facts import Fact, differences, facts
from llmlab.report.predictions import Prediction, predictions
from llmlab.report.rows import Row, rows
from llmlab.report.shape import Shape, shape
from llmlab.report.side import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report says of its runs, before it is printed in any form."""

    sides: Sequence[Side]
    differences: Sequence[Fact]
    rows: Sequence[Row]
    shape: Shape
    predictions: Sequence[Prediction]

    @classmethod
    def of(cls, sides: Sequence[Side]) -> "Report":
        """The report of one run or more; the first is the one that the others are compared with."""
        known = facts(sides)
        found = rows(sides, known)
        return cls(
            sides=sides,
            differences=differences(known),
            rows=found,
            shape=shape(sides, found),
            predictions=predictions(sides),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts; every row has one text per column. `left` columns are words, the others figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines of text under a title."""

    title: str
    lines: Sequence[str]


Block = Table | Lines
