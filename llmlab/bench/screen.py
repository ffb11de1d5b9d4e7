"""Screen: tables on stdout, drawn on a terminal, plain and never cut elsewhere."""

from collections.abc import Iterable
from typing import TextIO

from llmlab.bench.tables import Table
from llmlab.printable import printable_line


def print_table(table: Table, out: TextIO) -> None:
    """Print a table with its title above and its lines below."""
    if out.isatty():
        draw(table, out)
    else:
        out.write(plain(table))
    out.flush()


def widths(table: Table) -> list[int]:
    return [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]


def plain(table: Table) -> str:
    """The table as aligned text; lines are as long as they must be."""
    width = widths(table)
    rows = [[cell.ljust(w) for cell, w in zip(row, width, strict=True)] for row in (table.columns, *table.rows)]
    body = ["  ".join(row).rstrip() for row in rows]
    return "\n".join([table.title, "", *body, *([""] if table.lines else []), *table.lines]) + "\n\n"


def draw(table: Table, out: TextIO) -> None:
    """The table with a rule and colours; one wider than the terminal is printed plain, so that nothing is cut."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(file=out, emoji=False, highlight=False)
    if sum(widths(table)) + 2 * len(table.columns) > console.width:
        out.write(plain(table))
        return
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, title=Text(table.title, style="bold"), title_justify="left")
    for index, column in enumerate(table.columns):
        grid.add_column(Text(column), style="bold" if index == 0 else "", no_wrap=True)
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)
    for line in table.lines:
        console.print(Text(line))
    console.print()


def print_findings(findings: Iterable[str], notes: Iterable[str], out: TextIO) -> None:
    """What the run says in words, and what to keep in mind with it."""
    for title, texts in (("Findings", list(findings)), ("Keep in mind", list(notes))):
        if texts:
            out.write(f"{title}\n" + "".join(f"- {printable_line(text)}\n" for text in texts))
    out.flush()
