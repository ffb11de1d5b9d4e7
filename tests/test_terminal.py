"""`llmlab chat` in a real terminal: keys, Ctrl-C, commands; and what is left when it is killed."""

import re
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from llmlab.fake import FakeServer, Figures
from llmlab.fake.model import WORDS

pexpect = pytest.importorskip("pexpect", reason="needs a Unix terminal")

SLOW = {"decode_gap_ns": 20_000_000, "prefill_tokens_per_s": 100_000.0}
WHERE = "\x1b[6n"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")


class Terminal:
    """A chat in a pseudo-terminal that answers its questions about the cursor, as a person's would."""

    def __init__(self, *args: str, size=(24, 80)):
        self.child = pexpect.spawn(
            sys.executable, ["-m", "llmlab", "chat", *args], encoding="utf-8", timeout=20, dimensions=size
        )
        self.expect("Ctrl-D leaves")
        self.expect("next: cold")

    def expect(self, words: str) -> str:
        """Wait for `words`; what was shown before them, without escapes."""
        shown = ""
        while self.child.expect_exact([words, WHERE]):
            shown += self.child.before or ""
            self.child.send("\x1b[1;1R")
        return ESCAPES.sub("", shown + (self.child.before or ""))

    def type(self, text: str) -> None:
        self.child.send(text + "\r")

    def leave(self) -> int:
        self.child.send("\x04")
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


def calls(tmp_path: Path) -> list[tuple[str, int | None]]:
    connection = sqlite3.connect(tmp_path / "lab.db")
    try:
        return connection.execute("select outcome, output_tokens from calls order by rowid").fetchall()
    finally:
        connection.close()


@pytest.fixture
def slow():
    with FakeServer(Figures(**SLOW)) as fake:
        yield fake


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(slow, tmp_path):
    terminal = Terminal("--host", slow.url, "-n", "40")
    terminal.type("tell me a long story")
    terminal.expect("the river")
    terminal.child.sendintr()
    terminal.expect("stopped")
    terminal.type("and now?")
    terminal.expect("to first token")
    assert terminal.leave() == 0
    assert [outcome for outcome, _ in calls(tmp_path)] == ["cancelled", "ok"]
    assert slow.served[0].gone
    sent = [m["content"] for m in slow.served[1].body["messages"]]
    assert sent[0] == "tell me a long story"
    assert sent[1].endswith("[stopped here]")
    assert sent[2] == "and now?"


def test_ctrl_c_twice_leaves_with_130(slow):
    terminal = Terminal("--host", slow.url)
    terminal.child.sendintr()
    terminal.expect("again")
    terminal.child.sendintr()
    terminal.child.expect(pexpect.EOF)
    terminal.child.close()
    assert terminal.child.exitstatus == 130


def test_commands_pins_receipt_and_save(tmp_path):
    with FakeServer(Figures(decode_gap_ns=1_000_000, prefill_tokens_per_s=1e6)) as fake:
        terminal = Terminal("--host", fake.url, "-n", "8")
        terminal.type("/pin the code word is HERON")
        terminal.expect("to first token")
        terminal.type("/pins")
        assert "1. user: the code word is HERON" in terminal.expect("2. assistant:")
        terminal.type("/receipt")
        assert "prefill" in terminal.expect("decode")
        terminal.type("/unpin 1")
        terminal.expect("unpinned: the code word")
        terminal.type("/budget off")
        terminal.expect("the server decides")
        terminal.type("/nonsense")
        terminal.expect("/help lists them")
        terminal.type(f"/save {tmp_path / 'talk.md'}")
        terminal.expect("saved 2 messages")
        terminal.type("/retry")
        terminal.expect("to first token")
        assert terminal.leave() == 0
    assert (tmp_path / "talk.md").read_text().startswith("## user\n\nthe code word is HERON\n")
    assert len(fake.served) == 2
    assert [m["content"] for m in fake.served[1].body["messages"]] == ["the code word is HERON"]


def test_a_failed_turn_can_be_retried_and_leaves_nothing_behind(tmp_path):
    with FakeServer(Figures(decode_gap_ns=1_000_000, faults={0: "refuse"})) as fake:
        terminal = Terminal("--host", fake.url, "-n", "8")
        terminal.type("first")
        terminal.expect("/retry asks again")
        terminal.type("/retry")
        terminal.expect("to first token")
        assert terminal.leave() == 0
    assert [m["content"] for m in fake.served[1].body["messages"]] == ["first"]
    assert [outcome for outcome, _ in calls(tmp_path)] == ["error", "ok"]


def test_the_bottom_line_shows_the_window(slow):
    terminal = Terminal("--host", slow.url, "-n", "8")
    terminal.type("hello")
    terminal.expect("to first token")
    assert "/ 3,584" in terminal.expect("next: warm")
    assert terminal.leave() == 0


def test_each_line_of_a_long_answer_appears_once(tmp_path):
    with FakeServer(Figures(decode_gap_ns=200_000, prefill_tokens_per_s=1e6)) as fake:
        terminal = Terminal("--host", fake.url, "-n", "300", size=(10, 40))
        terminal.type("go on")
        terminal.expect("The river")
        shown = terminal.expect("to first token")
        assert terminal.leave() == 0
    answer = " ".join((WORDS * 12)[:300])
    assert "".join(shown.split()).count("anarrowbookboundwith") == answer.count("a narrow book bound with")


def test_kill_9_loses_no_finished_call(slow, tmp_path):
    terminal = Terminal("--host", slow.url, "-n", "8")
    terminal.type("one")
    terminal.expect("to first token")
    terminal.type("two")
    terminal.expect("two")
    terminal.child.kill(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while terminal.child.isalive() and time.monotonic() < deadline:
        pass
    assert calls(tmp_path)[0] == ("ok", 8)
