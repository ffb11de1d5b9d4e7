"""Tables for people: with colour, fitted to its width on a terminal; plain, never wrapped or cut, in a pipe."""

from typing import TYPE_CHECKING, TextIO

from llmlab.report.document import Block, Lines, Report, Table
from llmlab.report.tables import blocks

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

STYLES = {
    "ok": "green",
    "caution": "yellow",
    "not comparable": "red",
    "same shape": "green",
    "differs": "red",
    "can't tell": "yellow",
}


def write_table(report: Report, out: TextIO) -> None:
    """Print the report as text."""
    if out.isatty():
        _write_rich(blocks(report), out)
    else:
        out.write("\n".join(_plain(block) for block in blocks(report)))


def _plain(block: Block) -> str:
    if isinstance(block, Lines):
        return "".join(f"{line}\n" for line in (block.title, *(f"- {line}" for line in block.lines)))
    lines = [block.columns, *block.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(block.columns))]
    texts = ("  ".join(_pad(block, i, text, widths[i]) for i, text in enumerate(line)).rstrip() for line in lines)
    return "".join(f"{line}\n" for line in (block.title, *texts, *(f"- {note}" for note in block.notes)))


def _pad(block: Table, index: int, text: str, width: int) -> str:
    return text.ljust(width) if index in block.left else text.rjust(width)


def _write_rich(found: list[Block], out: TextIO) -> None:
    from rich.console import Console

    console = Console(file=out, emoji=False, highlight=False)
    for index, block in enumerate(found):
        if index:
            console.print()
        _print_rich(console, block)


def _print_rich(console: "Console", block: Block) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = _rich_table(block) if isinstance(block, Table) else None
    if table is not None and _least_width(console, table) > console.width:
        console.file.write(_plain(block))  # the terminal breaks its lines, and no figure is cut
        return
    console.print(Text(block.title, style="bold"))
    if table is not None:
        console.print(table)
    lines = RichTable.grid("", "", padding=(0, 1))
    lines.columns[1].overflow = "fold"
    for line in block.lines if isinstance(block, Lines) else block.notes:
        lines.add_row("-", Text(line))
    if lines.row_count:
        console.print(lines)


def _rich_table(block: Table) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    last = len(block.columns) - 1
    for index, heading in enumerate(block.columns):
        left = index in block.left
        # Only words may be folded: a figure on two lines cannot be read.
        fixed = not left or index == 0
        table.add_column(Text(heading), justify="left" if left else "right", no_wrap=fixed, overflow="fold")
    for row in block.rows:
        table.add_row(*(Text(text, style=_style(text) if i == last else "") for i, text in enumerate(row)))
    return table


def _least_width(console: "Console", table: "RichTable") -> int:
    return console.measure(table, options=console.options.update(width=10_000)).minimum


def _style(text: str) -> str:
    return next((style for word, style in STYLES.items() if text.startswith(word)), "")
