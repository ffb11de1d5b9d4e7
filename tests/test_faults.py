"""Bad days, through the commands: disks, folders, files and servers that fail before and in mid-run.

Each is one line with the right exit code; nothing that was measured is lost, and nothing is sent for naught.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from llmlab.call import Call
from llmlab.errors import Exit
from llmlab.fake import FakeServer, Figures
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store
from llmlab.store.schema import STEPS, migrations
from tests.lesson_runs import keep, lesson_calls, lesson_run
from tests.played import answer, done_line
from tests.playing import Playing
from tests.test_store_faults import open_folder, permissions, posix_only, unprivileged  # noqa: F401 - a fixture

FINE = {**answer("fine", done_line()), "always": True}
QUICK = Figures(decode_gap_ns=500_000, prefill_tokens_per_s=100_000)
BENCH = ("bench", "prompt_length", "repeat_prompt", "--quick", "--sizes", "100", "-n", "8", "--tag", "t")


def one_line(result, code: int, *words: str) -> str:
    assert result.exit_code == code, result.stderr
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ") and all(word in last for word in words), last
    return last


def strangers(tmp_path: Path) -> dict[str, Path]:
    """Files that are not ours, each of its kind."""
    photos, text, newer = tmp_path / "photos.db", tmp_path / "notes.txt", tmp_path / "newer.db"
    with closing(sqlite3.connect(photos)) as connection:
        connection.execute("CREATE TABLE photos (id INTEGER)")
    text.write_bytes(b"not a database, but longer than a header" * 30)
    Store.open(newer).close()
    with closing(sqlite3.connect(newer)) as connection, connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmlab', 'm999_later', '2030')"
        )
        connection.execute("PRAGMA journal_mode = DELETE")
    return {"is not llmlab's": photos, "is not a SQLite database": text, "newer llmlab": newer}


def test_a_file_that_is_not_ours_is_refused_before_anything_is_sent(lab, tmp_path) -> None:
    with Playing(FINE) as server:
        for words, path in strangers(tmp_path).items():
            before = path.read_bytes()
            for args in (("chat", "hi"), ("bench", "--quick"), ("serve", "--port", "0"), ("merge", str(path))):
                db = ("--db", str(path)) if args[0] != "merge" else ("--db", str(tmp_path / "lab.db"))
                host = ("--host", server.url) if args[0] != "merge" else ()
                one_line(lab(*args, *host, *db), Exit.STORE, words, path.name)
            for args in (("runs",), ("report",), ("export", "t", "--output", str(tmp_path / "x.db"))):
                one_line(lab(*args, "--db", str(path)), Exit.STORE, words, path.name)
            assert "bad   store" in lab("doctor", "--host", server.url, "--db", str(path)).stdout
            assert path.read_bytes() == before
        assert server.asked == []


@pytest.mark.parametrize("stop_before", STEPS[1:])
def test_a_file_of_an_older_schema_is_read_as_it_is_and_upgraded_by_the_first_call(lab, tmp_path, stop_before) -> None:
    path = tmp_path / "lab.db"
    with closing(Database(path).conn) as connection:
        migrations().apply(Database(connection), stop_before=stop_before)
        connection.execute("INSERT INTO runs (id, command, started_utc) VALUES ('R', 'bench', '2025-01-01T00:00:00Z')")
        connection.commit()
    before = path.read_bytes()
    assert "bench" in lab("runs").stdout
    assert lab("report").exit_code == 0
    assert path.read_bytes() == before
    with Playing(FINE) as server:
        assert lab("chat", "hi", "--host", server.url).exit_code == 0
    assert len(lab("runs", "--format", "csv").stdout.splitlines()) == 3


@posix_only
def test_a_folder_that_cannot_be_written(lab, open_folder) -> None:  # noqa: F811
    """What is there can be read; what would be measured is refused before it is sent."""
    path = open_folder / "closed" / "lab.db"
    with Store.open(path) as store:
        run = Run(command="bench", tag="t")
        store.start_run(run)
        store.add(Call(run_id=run.id, purpose="measured", experiment="prompt_length", size=100, ttft_ns=1))
    path.chmod(0o644)
    with Playing(FINE) as server, permissions(path.parent, 0o555), unprivileged():
        for args in (("chat", "hi"), ("bench", "--quick"), ("serve", "--port", "0")):
            one_line(lab(*args, "--host", server.url, "--db", str(path)), Exit.STORE, "cannot be written", "--db")
        assert server.asked == []
        for args in (("runs",), ("report", "t"), ("report", "t", "--format", "html")):
            assert lab(*args, "--db", str(path)).exit_code == 0
        result = lab("report", "t", "--db", str(path), "--output", str(path.parent / "report.html"))
        one_line(result, Exit.USAGE, "cannot write", "report.html")
    assert [p.name for p in path.parent.iterdir()] == ["lab.db"]


LIMITED = """
import os, resource, sys
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # no file may grow beyond: as on a full disk, the write fails
os.execv(sys.executable, [sys.executable, "-m", "llmlab", *sys.argv[2:]])
"""


def on_a_full_disk(size: int, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(size), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, stdin=subprocess.DEVNULL)


@posix_only
def test_a_disk_that_is_full_from_the_start(tmp_path) -> None:
    with Playing(FINE) as server:
        done = on_a_full_disk(20_000, "chat", "hi", "--host", server.url)
        assert server.asked == []
    assert done.returncode == Exit.STORE and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1 and "lab.db" in done.stderr


@posix_only
def test_a_disk_that_fills_up_in_mid_run_keeps_what_was_saved(lab, tmp_path, rows) -> None:
    with FakeServer(QUICK) as fake:
        done = on_a_full_disk(500_000, *BENCH, "--repeat", "60", "--keep-text", "--host", fake.url)
        assert done.returncode == Exit.STORE and "Traceback" not in done.stderr, done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("Error: ") and "lab.db cannot " in last
        saved = rows("select count(*) n from calls where purpose = 'measured'")[0]["n"]
        assert 0 < saved < 120
        again = lab("bench", "--resume", "--host", fake.url)
        assert again.exit_code == 0
    assert rows("select count(*) n from calls where purpose = 'measured' and outcome = 'ok'")[0]["n"] >= 120


@posix_only
@pytest.mark.parametrize("lines", [False, True])
def test_a_file_that_is_removed_in_mid_answer_is_told(lab, tmp_path, lines) -> None:
    path = tmp_path / "lab.db"

    def remove() -> None:
        for name in ("lab.db", "lab.db-wal", "lab.db-shm"):
            (tmp_path / name).unlink()

    with Playing(answer("the answer", {"call": remove}, done_line()), answer("never", done_line())) as server:
        turns = {"stdin": "a\nb\n"} if lines else {}
        result = lab("chat", "--host", server.url, *(["--lines"] if lines else ["hi"]), **turns)
        assert len(server.asked) == 1
    one_line(result, Exit.STORE, "was moved or removed while in use", "not saved")
    assert result.stdout == "the answer\n"
    assert not path.exists()


@posix_only
def test_a_file_that_is_removed_under_a_bench_ends_it(lab, tmp_path) -> None:
    path = tmp_path / "lab.db"
    with FakeServer(QUICK) as fake:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmlab", *BENCH, "--repeat", "400", "--host", fake.url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            for line in process.stderr:
                if "sample 3" in line:
                    path.unlink()
                    break
            rest = process.stderr.read()
            assert process.wait(60) == Exit.STORE
    assert "Traceback" not in rest
    assert "was moved or removed while in use" in rest.splitlines()[-1]
    assert len(fake.served) < 700, "it does not go on for what cannot be kept"


def test_a_server_that_restarts_between_turns_is_asked_again(lab, rows) -> None:
    """Its connection is gone when the second question is asked."""
    with Playing({**answer("one", done_line()), "hang_up": True}, answer("two", done_line())) as server:
        result = lab("chat", "--lines", "--host", server.url, stdin="a\nb\n")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
    assert rows("select outcome from calls") == [{"outcome": "ok"}] * 2


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_server_that_dies_in_mid_answer_leaves_what_came(lab, rows, end) -> None:
    with Playing(answer("the first half", end=end)) as server:
        result = lab("chat", "hi", "--host", server.url, "--keep-text")
    one_line(result, Exit.SERVER, "broke off in mid-answer")
    assert result.stdout == "the first half\n"
    assert rows("select outcome, pieces from calls") == [{"outcome": "incomplete", "pieces": 1}]
    assert rows("select answer from texts") == [{"answer": "the first half"}]


def test_a_bench_goes_on_where_a_server_died_in_one_call(lab, rows) -> None:
    """Calls 0 to 3 are the warm-up and the first anchor."""
    with FakeServer(Figures(decode_gap_ns=500_000, prefill_tokens_per_s=100_000, faults={4: "die"})) as fake:
        result = lab(*BENCH, "--repeat", "1", "--host", fake.url)
    assert result.exit_code == 0
    outcomes = [row["outcome"] for row in rows("select outcome from calls where experiment = 'prompt_length'")]
    assert outcomes == ["incomplete", "ok"]
    assert "1 failed: " in result.stdout


def test_eight_programs_at_once_on_a_file_that_is_not_there(tmp_path, rows) -> None:
    with Playing(FINE) as server:
        command = [sys.executable, "-m", "llmlab", "chat", "--lines", "--host", server.url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen(command, **pipes) for _ in range(8)]
        ended = [process.communicate("a\nb\nc\nd\n") for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, ended
    assert [out for out, _ in ended] == ["fine\n" * 4] * 8
    assert rows("select count(*) n from calls where outcome = 'ok'") == [{"n": 32}]
    assert rows("select count(*) n from runs where outcome = 'ok'") == [{"n": 8}]
    assert rows("select count(*) n from machines") == [{"n": 1}]


def test_a_damaged_file_is_told_by_every_command(lab, tmp_path) -> None:
    path = tmp_path / "lab.db"
    with Store.open(path) as store:
        run = Run(command="bench", tag="t")
        store.start_run(run)
        for seq in range(300):
            store.add(Call(run_id=run.id, seq=seq, purpose="measured", experiment="prompt_length", size=100))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xaa" * (size * 3 // 4))
    shutil.copyfile(path, tmp_path / "copy.db")
    for args in (("report", "t"), ("runs",), ("export", "t", "--output", str(tmp_path / "x.db"))):
        one_line(lab(*args), Exit.STORE, "lab.db is damaged", ".recover")
    one_line(lab("merge", str(tmp_path / "copy.db"), "--db", str(tmp_path / "new.db")), Exit.STORE, "is damaged")


KEYS = ("id", "run_id", "model_id", "machine_id", "command", "purpose", "experiment")


@pytest.mark.parametrize("table", ["calls", "runs", "models", "machines"])
@pytest.mark.parametrize("value", ["abc", b"\xff\x00", 1.5, float("inf"), -5], ids=str)
def test_a_file_whose_columns_hold_another_programs_values(lab, tmp_path, table, value) -> None:
    """SQLite takes any type in any column; what is no figure is unknown, whatever wrote it."""
    for number in (1, 2):
        keep(tmp_path / "lab.db", lesson_run(number), lesson_calls(number), Model(name="demo", digest="aaa"))
    with closing(sqlite3.connect(tmp_path / "lab.db")) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})") if name not in KEYS]
        for column in columns:
            half = f"(SELECT rowid FROM {table} WHERE rowid % 2 = length('{column}') % 2)"
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid IN {half}", (value,))
    for args in (("report",), ("report", "--format", "json"), ("runs",), ("runs", "--format", "json")):
        result = lab(*args)
        assert result.exit_code == 0
        if args[-1] == "json":
            json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert lab("report", "first", "second", "--fail-on-regression", "10").exit_code in (0, 1, 2)
    word = lab("runs", "--format", "json").stdout.split('"short_id": "')[1][:6]
    exported = lab("export", word, "--output", str(tmp_path / "x.db"))
    assert exported.exit_code == 0 or one_line(exported, Exit.STORE, "CHECK constraint failed")


BACKWARDS = """
import datetime, itertools, time
hours, now, then = itertools.count(1), datetime.datetime.now, time.time

class Calendar(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return now(tz) - datetime.timedelta(hours=next(hours))

datetime.datetime = Calendar
time.time = lambda: then() - 3600 * next(hours)
"""


def test_a_calendar_that_runs_backwards_changes_no_duration(tmp_path, rows) -> None:
    (tmp_path / "sitecustomize.py").write_text(BACKWARDS)
    slow = answer("a", {"sleep_ms": 50}, "b", done_line())
    with Playing({**slow, "always": True}) as server:
        done = subprocess.run(
            [sys.executable, "-m", "llmlab", "chat", "--lines", "--host", server.url],
            input="one\ntwo\n",
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (run,) = rows("select started_utc, finished_utc from runs")
    assert run["finished_utc"] < run["started_utc"]
    calls = rows("select seq, ttft_ns, total_ns, started_utc from calls order by seq")
    assert calls[1]["started_utc"] < calls[0]["started_utc"]
    assert all(0 <= call["ttft_ns"] < 50_000_000 <= call["total_ns"] < 20_000_000_000 for call in calls)
