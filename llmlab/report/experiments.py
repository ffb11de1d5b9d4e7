"""Experiments: the tables of measured figures, one per experiment, in the lesson's form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmlab.cells import Cell
from llmlab.figures import MISSING, format_count, format_range, format_value
from llmlab.report.document import Table
from llmlab.report.rows import Row
from llmlab.report.shape import decode_figure
from llmlab.report.side import Side, plain

TITLES = {
    "prompt_length": "Prompt length",
    "repeat_prompt": "Same prompt twice",
    "users": "Several users at once",
    "overflow": "Overflow",
}
ROW_HEADINGS = {"prompt_length": "prompt", "users": "users", "overflow": "turns"}
VARIANT_WORDS = {
    "first": "first time",
    "again": "again",
    "same_start": "same start, new ending",
    "new_start": "new start, same rest",
    "control": "unrelated prompt",
    "no_budget": "no budget",
    "truncate_false": "truncate: false",
    "budget": "budget",
    "budget_pin": "budget and pin",
}
THINKING_GAP = 1.1
"""The first word of the answer gets its own column where it comes this much later than the first piece."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a table: `text(cell, alone)` prints it, with its range where it stands `alone`.

    Values that are results of the machine stand side by side; a `shared` one is written once where all runs agree.
    """

    heading: str
    text: Callable[[Cell, bool], str]
    shared: bool = False


def experiment_table(sides: Sequence[Side], experiment: str, rows: Sequence[Row]) -> Table:
    """One experiment: a row per cell with `7 s / 5 s` for one run or two, else a row per figure, a column per run."""
    columns = [c for c in _columns(experiment, sides, rows) if _is_filled(c, rows)]
    title = TITLES.get(experiment, plain(experiment))
    notes = tuple(_errors(sides, rows))
    if len(sides) > 2:
        return _long_table(title, sides, columns, rows, notes)
    shown = [[row_name(row), *(_together(c, row) for c in columns), row.verdict] for row in rows]
    compare = "compare" if len(sides) > 1 else "marks"
    return Table(
        title=f"{title}: {' / '.join(s.label for s in sides)}" if len(sides) > 1 else title,
        columns=(ROW_HEADINGS.get(experiment, ""), *(c.heading for c in columns), compare),
        rows=shown,
        left=frozenset({0, len(columns) + 1} if experiment in ("repeat_prompt", "overflow") else {len(columns) + 1}),
        notes=notes,
    )


def _long_table(
    title: str, sides: Sequence[Side], columns: Sequence[Column], rows: Sequence[Row], notes: Sequence[str]
) -> Table:
    columns = [c for c in columns if c.heading != "n" or _disagree(c, rows)]
    # The reasons stand once, the mark on every line.
    shown = [
        [column.heading, row_name(row), *(_text(column, c) for c in row.cells), str(row.mark if i else row.verdict)]
        for i, column in enumerate(columns)
        for row in rows
        if any(_text(column, c) != MISSING for c in row.cells) or i == 0
    ]
    words = range(len(sides) + 3) if rows[0].experiment == "overflow" else (0, 1, len(sides) + 2)
    return Table(
        title=title,
        columns=("", ROW_HEADINGS.get(rows[0].experiment, ""), *(side.label for side in sides), "compare"),
        rows=shown,
        left=frozenset(words),
        notes=notes,
    )


def _disagree(column: Column, rows: Sequence[Row]) -> bool:
    return any(len({_text(column, cell) for cell in row.cells}) > 1 for row in rows)


def _text(column: Column, cell: Cell | None) -> str:
    return column.text(cell, False) if cell else MISSING


def row_name(row: Row) -> str:
    """`1,000`, `first time`, `12, budget and pin`."""
    experiment, variant, size = row.key
    words = VARIANT_WORDS.get(variant or "", plain(variant, ""))
    number = "" if size is None or experiment == "repeat_prompt" else format_count(size)
    return ", ".join(filter(None, (number, words))) or MISSING


def _columns(experiment: str, sides: Sequence[Side], rows: Sequence[Row]) -> list[Column]:
    waits = [_figure("first token", "ttft_ns")]
    if any(_thinks(cell) for row in rows for cell in row.cells if cell):
        waits.append(_figure("first word of answer", "ttft_answer_ns"))
    n = [Column("failed", _failed, shared=True), Column("n", lambda cell, alone: str(cell.n), shared=True)]
    read = _figure("tokens", "prompt_tokens", shared=True)
    cached = _figure("cached", "cached_tokens", shared=True)
    decode = decode_figure(sides)
    if experiment == "users":
        worst, total = _figure("worst", "ttft_worst_ns"), _figure("total tok/s", "total_tokens_per_s")
        return [*waits, worst, _figure("tok/s each", "user_tokens_per_s"), total, *n]
    if experiment == "overflow":
        sent = _figure("sent (estimate)", "prompt_tokens_estimate", shared=True)
        return [
            sent,
            _figure("tokens read", "prompt_tokens"),
            Column("remembered", lambda cell, alone: remembered(cell), shared=True),
            *n,
        ]
    prefill = _figure("prefill tok/s", "prefill_tokens_per_s")
    if experiment == "repeat_prompt":
        return [read, cached, *waits, prefill, *n]
    heading = "decode tok/s" if decode.startswith("decode") else "seen tok/s"
    return [read, *waits, prefill, _figure(heading, decode), *n]


def _figure(heading: str, name: str, *, shared: bool = False) -> Column:
    def text(cell: Cell, alone: bool) -> str:
        figure = cell.figures.get(name)
        if figure is None:
            return MISSING
        shown = format_value(name, figure.median).removesuffix(" tok/s")
        spread = format_range(name, figure) if alone else ""
        return f"{shown} ({spread})" if spread else shown

    return Column(heading, text, shared)


def _thinks(cell: Cell) -> bool:
    first, answer = cell.median("ttft_ns"), cell.median("ttft_answer_ns")
    return bool(first and answer and answer > THINKING_GAP * first)


def _failed(cell: Cell, alone: bool) -> str:
    return str(cell.failed) if cell.failed else MISSING


def remembered(cell: Cell) -> str:
    """`yes`, `2 of 3`, `no: cut by the server`, `refused`."""
    if not cell.asked:
        return "refused" if cell.refused else MISSING
    found = cell.recalled or 0
    words = "yes" if found == cell.asked else "no" if not found else ""
    counts = f"{found} of {cell.asked}" if cell.asked > 1 else ""
    return f"{counts or words}{': ' if cell.reasons else ''}{', '.join(dict.fromkeys(cell.reasons))}"


def _together(column: Column, row: Row) -> str:
    """One text for the cells of one or two runs."""
    alone = len(row.cells) == 1
    texts = [column.text(cell, alone) if cell else MISSING for cell in row.cells]
    same = len(set(texts)) == 1 and (column.shared or texts[0] == MISSING)
    return texts[0] if same or alone else " / ".join(texts)


def _is_filled(column: Column, rows: Sequence[Row]) -> bool:
    """Whether a column says anything."""
    return any(column.text(cell, False) != MISSING for row in rows for cell in row.cells if cell)


def _errors(sides: Sequence[Side], rows: Sequence[Row]) -> list[str]:
    """What servers said, each text once per run with the row where it came first."""
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        for side, cell in zip(sides, row.cells, strict=True):
            if cell and cell.error:
                found.setdefault((side.label, plain(cell.error)), row_name(row))
    return [f"{label}, {name}: {text}" for (label, text), name in found.items()]
