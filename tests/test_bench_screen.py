"""Tables on a terminal and off it."""

import io

import pytest

from llmlab.bench.screen import print_findings, print_table
from llmlab.bench.tables import Table

TABLE = Table(
    "Several users",
    ("users", "first token", "note"),
    [("1", "0.18 s", ""), ("8", "2.6 s", "1 failed: [red]server busy[/red]")],
    ["Slots: 4"],
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_columns_are_aligned_and_nothing_is_cut() -> None:
    out = io.StringIO()
    print_table(TABLE, out)
    assert out.getvalue().splitlines() == [
        "Several users",
        "",
        "users  first token  note",
        "1      0.18 s",
        "8      2.6 s        1 failed: [red]server busy[/red]",
        "",
        "Slots: 4",
        "",
    ]


def test_on_a_terminal_the_table_is_drawn_and_words_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    print_table(TABLE, out)
    assert "───" in out.getvalue() and "[red]server busy[/red]" in out.getvalue()


def test_a_narrow_terminal_gets_the_plain_table_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    print_table(TABLE, out)
    assert "8      2.6 s        1 failed: [red]server busy[/red]\n" in out.getvalue()
    assert "…" not in out.getvalue()


def test_findings_are_one_line_each() -> None:
    out = io.StringIO()
    print_findings(["The prompt is the slow part."], [], out)
    assert out.getvalue() == "Findings\n- The prompt is the slow part.\n"
