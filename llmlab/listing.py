"""A listing of rows: a table on a terminal, plain aligned text on a pipe, csv or json for programs."""

import csv
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TextIO

from llmlab.figures import MISSING
from llmlab.printable import json_text, printable_line


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


Rows = Sequence[Mapping[str, Any]]
FOLDED = 1.7
"""A table is folded to fit a terminal up to so many times too narrow for it."""


def print_listing(rows: Rows, columns: Sequence[str], form: Format, out: TextIO) -> None:
    """Print `rows`. csv and json hold every key and raw values; a table only `columns`, and text as it is given.

    Nothing in them drives a terminal: control characters are spaces, in json escapes.
    """
    if form is Format.json:
        out.write(json_text(list(rows), indent=1) + "\n")
    elif form is Format.csv:
        _print_csv(rows, out)
    else:
        cells = [[_shown(row.get(column)) for column in columns] for row in rows]
        (_print_rich if out.isatty() else _print_plain)(columns, cells, out)


def _shown(value: Any) -> str:
    return MISSING if value is None else printable_line(str(value))


def _print_csv(rows: Rows, out: TextIO) -> None:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _harmless(v) for k, v in row.items()} for row in rows)


def _harmless(value: Any) -> Any:
    """Text on one line; one that a spreadsheet would run as a formula gets an apostrophe in front and stays text."""
    if not isinstance(value, str):
        return value
    text = printable_line(value)
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") else text


def _print_plain(columns: Sequence[str], cells: list[list[str]], out: TextIO) -> None:
    table = [list(columns), *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    for row in table:
        out.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _print_rich(columns: Sequence[str], cells: list[list[str]], out: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=out, emoji=False, highlight=False)
    widest = console.measure(table, options=console.options.update(width=10_000)).maximum
    if widest > FOLDED * console.width:
        _print_plain(columns, cells, out)  # folded further, nobody could read it: the terminal breaks the lines
    else:
        console.print(table)
