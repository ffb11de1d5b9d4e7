"""A listing of rows: a table on a terminal, plain aligned text on a pipe, csv or json for programs."""

import csv
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TextIO

from llmlab.figures import MISSING


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


Rows = Sequence[Mapping[str, Any]]


def print_listing(rows: Rows, columns: Sequence[str], form: Format, out: TextIO) -> None:
    """Print `rows`. csv and json hold every key and raw values; a table only `columns`, and text as it is given."""
    if form is Format.json:
        out.write(json.dumps(list(rows), ensure_ascii=False, indent=1) + "\n")
    elif form is Format.csv:
        _print_csv(rows, out)
    else:
        cells = [[_shown(row.get(column)) for column in columns] for row in rows]
        (_print_rich if out.isatty() else _print_plain)(columns, cells, out)


def _shown(value: Any) -> str:
    text = MISSING if value is None else str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def _print_csv(rows: Rows, out: TextIO) -> None:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _unformula(v) for k, v in row.items()} for row in rows)


def _unformula(value: Any) -> Any:
    """A spreadsheet runs text that starts with one of these as a formula; a leading apostrophe keeps it text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


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
    Console(file=out, emoji=False, highlight=False).print(table)
