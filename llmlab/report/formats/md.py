"""Markdown that pastes into an issue: the runs with their machines on top, then every table."""

from typing import TextIO

from llmlab.report.document import Block, Lines, Report, Table
from llmlab.report.tables import blocks

ESCAPED = {"\\": "\\\\", "|": "\\|", "&": "&amp;", "<": "&lt;", ">": "&gt;"} | {c: f"\\{c}" for c in "`*_[]~#"}


def write_md(report: Report, out: TextIO) -> None:
    """Print the report as GitHub-flavoured Markdown."""
    runs, *rest = blocks(report) or [Lines(title="Runs", lines=())]
    out.write("\n".join([_lines(runs), *map(_section, rest)]))


def _section(block: Block) -> str:
    heading = f"### {escape(block.title)}\n\n"
    return heading + (_lines(block) if isinstance(block, Lines) else _table(block))


def _lines(block: Block) -> str:
    lines = block.lines if isinstance(block, Lines) else block.notes
    return "".join(f"- {escape(line)}\n" for line in lines)


def _table(block: Table) -> str:
    rule = ["---" if i in block.left else "--:" for i in range(len(block.columns))]
    rows = [[escape(text) for text in row] for row in (block.columns, *block.rows)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], rule, *rows[1:]))
    return table + (f"\n{_lines(block)}" if block.notes else "")


def escape(text: str) -> str:
    """`text` so that Markdown and HTML show it as it is, on one line."""
    return "".join(ESCAPED.get(c, c) for c in " ".join(text.split()))
