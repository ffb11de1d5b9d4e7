"""Faults at the command line: streams that are closed, full, narrow or of another character set; homes and folders that
are not there. Real processes throughout: one line, the right exit code, no traceback, and nothing measured is lost.

The ids are those of the collection of cases.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmlab.fake import FakeServer, Figures
from llmlab.model import Model
from tests.lesson_runs import keep, lesson_calls, lesson_run
from tests.played import answer, done_line
from tests.playing import Playing

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
LLMLAB = [sys.executable, "-m", "llmlab"]
LONG_NAME = "hf.example/some-very-long-organisation/some-very-long-model-name-GGUF:Q4_K_M"
SYMBOLS = "done ✓ → 🙂"


def llmlab(*args: str, env: dict[str, str] | None = None, shell: str = "", stdin: bytes = b"", **more: object):
    """Run a command in a process of its own; `shell` are redirections such as `>&-`."""
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", *LLMLAB, *args] if shell else [*LLMLAB, *args]
    return subprocess.run(
        command, input=stdin, capture_output=True, env={**os.environ, **(env or {})}, check=False, timeout=60, **more
    )


def said(result, code: int) -> str:
    """What was said on stderr, which is no traceback; the exit code is `code`."""
    text = result.stderr.decode("utf-8", "replace")
    assert result.returncode == code, text
    assert "Traceback" not in text and "Exception ignored" not in text
    return text


@pytest.fixture
def hello():
    """A server that answers the same each time."""
    with Playing({**answer(SYMBOLS, done_line()), "always": True}) as server:
        yield server


@pytest.fixture
def recorded(tmp_path: Path) -> None:
    """Two bench runs of a model with a long name."""
    for number in (1, 2):
        keep(tmp_path / "lab.db", lesson_run(number), lesson_calls(number), Model(name=LONG_NAME, digest="aaa"))


def test_c115_a_pipe_is_answered_once_without_signs_and_colours(hello):
    result = llmlab(
        "chat", "--host", hello.url, stdin=b"hello\n", env={"FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    )
    assert "\x1b" not in said(result, 0)
    assert result.stdout.decode() == SYMBOLS + "\n"
    assert [m["content"] for m in hello.asked[0]["messages"]] == ["hello"]


def test_c115_an_empty_pipe_is_a_usage_error(hello):
    text = said(llmlab("chat", "--host", hello.url, stdin=b""), 2)
    assert text.count("\n") == 1 and "standard input is empty" in text


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, SYMBOLS.encode("cp1252", "replace")),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, SYMBOLS.encode("ascii", "replace")),
    ],
)
def test_c116_what_a_console_cannot_show_is_replaced_there_alone(hello, rows, env, shown):
    result = llmlab("chat", "hi ✓ 🙂", "--host", hello.url, "--keep-text", env={**env, "NO_COLOR": "1"})
    said(result, 0)
    assert result.stdout.splitlines() == [shown]
    (text,) = rows("select * from texts")
    assert text["answer"] == SYMBOLS
    if "PYTHONUTF8" not in env:
        assert json.loads(text["prompt_json"])[0]["content"] == "hi ✓ 🙂"


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_c116_tables_and_help_survive_any_console(recorded, encoding):
    for args in (("report",), ("runs",), ("bench", "--help")):
        result = llmlab(*args, env={"PYTHONIOENCODING": encoding})
        said(result, 0)
        assert result.stdout


@posix_only
def test_c118_a_reader_that_has_enough_ends_a_listing_quietly(recorded):
    for args in (("runs",), ("report", "--format", "html")):
        with subprocess.Popen(
            [*LLMLAB, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as process:
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(30) in (0, 141)


def test_c119_off_a_terminal_nothing_is_wrapped_or_cut(recorded):
    for args in (("runs",), ("report",), ("report", "--format", "md"), ("runs", "--format", "csv")):
        result = llmlab(*args, env={"COLUMNS": "40", "PYTHONIOENCODING": "utf-8"})
        said(result, 0)
        shown = result.stdout.decode().replace("\\_", "_")
        assert LONG_NAME in shown and "…" not in shown
    (run, _) = json.loads(llmlab("runs", "--format", "json").stdout)
    assert (run["model"], run["digest"]) == (LONG_NAME, "aaa")


@posix_only
@pytest.mark.parametrize(
    ("closed", "shown"), [("<&-", SYMBOLS + "\n"), ("2>&-", SYMBOLS + "\n"), (">&-", ""), ("<&- >&- 2>&-", "")]
)
def test_a_closed_stream_is_silence_and_its_number_is_never_a_sockets(hello, rows, closed, shown):
    result = llmlab("chat", "hi", "--host", hello.url, "--keep-text", shell=closed, env={"PYTHONIOENCODING": "utf-8"})
    said(result, 0)
    assert result.stdout.decode() == shown
    assert rows("select answer from texts") == [{"answer": SYMBOLS}]
    assert rows("select outcome from calls") == [{"outcome": "ok"}]


@posix_only
def test_a_conversation_without_any_input_is_a_usage_error(hello):
    assert "standard input is empty" in said(llmlab("chat", "--host", hello.url, shell="<&-"), 2)


full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@full
@pytest.mark.parametrize("args", [("runs",), ("report",), ("db", "path"), ("--help",), ("--version",)])
def test_output_that_cannot_be_written_is_one_line_and_a_failure(recorded, args):
    text = said(llmlab(*args, shell=">/dev/full"), 1)
    assert text == "Error: cannot write the output: No space left on device\n"


@full
def test_an_answer_that_cannot_be_shown_is_kept(hello, rows):
    text = said(llmlab("chat", "hi", "--host", hello.url, "--keep-text", shell=">/dev/full"), 1)
    assert text.splitlines()[-1] == "Error: cannot write the output: No space left on device"
    assert rows("select count(*) n from calls") == [{"n": 1}]
    assert rows("select outcome from runs") == [{"outcome": "failed"}]
    said(llmlab("chat", "hi", "--host", hello.url, shell="2>/dev/full"), 1)
    assert [row["outcome"] for row in rows("select outcome from calls order by rowid")][1:] == ["ok"]


BENCH = ("bench", "prompt_length", "repeat_prompt", "--quick", "--sizes", "100", "--repeat", "1", "-n", "8")


@full
def test_a_bench_whose_tables_cannot_be_written_keeps_what_it_measured(rows):
    with FakeServer(Figures(decode_gap_ns=500_000, prefill_tokens_per_s=100_000)) as fake:
        text = said(llmlab(*BENCH, "--host", fake.url, shell=">/dev/full"), 1)
        assert text.splitlines()[-1] == "Error: cannot write the output: No space left on device"
        assert "Go on with: llmlab bench --resume" in text
        assert rows("select count(*) n from calls where purpose = 'measured' and outcome = 'ok'")[0]["n"] >= 1
        assert rows("select outcome from runs") == [{"outcome": "interrupted"}]
        said(llmlab("bench", "--resume", "--host", fake.url), 0)
    assert rows("select outcome from runs") == [{"outcome": "ok"}]


@posix_only
def test_a_bench_without_its_reader_has_not_measured_everything(rows):
    with FakeServer(Figures(decode_gap_ns=500_000, prefill_tokens_per_s=100_000)) as fake:
        command = [*LLMLAB, *BENCH, "--host", fake.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            text = process.stderr.read().decode()
            assert process.wait(60) == 1
    assert "Traceback" not in text and "Go on with: llmlab bench --resume" in text
    assert rows("select outcome from runs") == [{"outcome": "interrupted"}]


def test_no_home_and_no_data_folder(hello, tmp_path):
    """A person without a home has a database where the system says, or names one."""
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_DATA_HOME", "LLMLAB_DB")}
    done = subprocess.run([*LLMLAB, "db", "path"], capture_output=True, env=env, check=False)
    assert done.returncode == 0 and done.stdout.strip().endswith(b"llmlab.db")
    done = subprocess.run(
        [*LLMLAB, "chat", "hi", "--host", hello.url, "--db", str(tmp_path / "x.db")],
        capture_output=True,
        env={**env, "HOME": "/nonexistent/home"},
        check=False,
    )
    assert "to first token" in said(done, 0)
    text = said(llmlab("runs", env={"LLMLAB_DB": "~nobody-of-this-name/lab.db"}), 2)
    assert "no home folder" in text and text.count("\n") == 1


@posix_only
def test_a_data_folder_that_cannot_be_made_is_told_before_anything_is_sent(hello, tmp_path):
    (tmp_path / "file").touch()
    env = {"XDG_DATA_HOME": str(tmp_path / "file"), "LLMLAB_DB": ""}
    for args in (("chat", "hi"), ("bench", "--quick"), ("serve", "--port", "0")):
        text = said(llmlab(*args, "--host", hello.url, env=env), 5)
        assert text.count("\n") == 1 and "--db or LLMLAB_DB" in text
    assert hello.asked == []
    assert "no bench run" in llmlab("report", env=env).stdout.decode()
    # With a database elsewhere the folder is only wanted for this machine's id, which can be done without.
    said(llmlab("chat", "hi", "--host", hello.url, env={**env, "LLMLAB_DB": str(tmp_path / "lab.db")}), 0)


@posix_only
def test_words_that_are_no_text_are_sent_stored_and_shown(hello, rows):
    broken = os.fsdecode(b"\xff\xfe")
    result = llmlab("chat", broken, "--tag", broken, "--host", hello.url, "--keep-text")
    said(result, 0)
    assert hello.asked[0]["messages"][0]["content"] == "\ufffd\ufffd"
    assert rows("select tag from runs") == [{"tag": "\ufffd\ufffd"}]
    said(llmlab("report", broken), 2)
    said(llmlab("runs", "--tag", broken), 0)


def on_terminal(*args: str, columns: int = 80, **env: str) -> str:
    """What a command shows in a pseudo-terminal of so many columns."""
    pexpect = pytest.importorskip("pexpect")
    command = [*LLMLAB[1:], *args]
    environment = {**os.environ, "TERM": "xterm-256color", **env}
    child = pexpect.spawn(LLMLAB[0], command, encoding="utf-8", timeout=30, dimensions=(24, columns), env=environment)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    return child.before


@posix_only
def test_no_color_leaves_colours_out(hello, recorded):
    colours = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
    for args in (("report",), ("runs",)):
        assert not colours.search(on_terminal(*args, NO_COLOR="1")), args
    assert colours.search(on_terminal("report"))
    assert "\x1b[2m" in on_terminal("chat", "hi", "--host", hello.url)
    assert "\x1b[2m" not in on_terminal("chat", "hi", "--host", hello.url, NO_COLOR="1")
    assert "\x1b" not in on_terminal("chat", "hi", "--host", hello.url, TERM="dumb")


@posix_only
def test_a_narrow_terminal_loses_no_word(recorded):
    for columns in (20, 40):
        for args in (("runs",), ("report",)):
            shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(*args, columns=columns))
            assert "…" not in shown and "Traceback" not in shown
            assert LONG_NAME in "".join(shown.split())
        assert "194 s / 127 s" in shown and "7.6 / 8.1" in shown
