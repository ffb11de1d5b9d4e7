"""Rows of other machines come in whole, once, and without touching the other file."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlite_utils import Database

from llmlab.call import Call
from llmlab.errors import StoreError, UsageError
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store
from llmlab.store.export import export_runs
from llmlab.store.merge import Copied, merge
from llmlab.store.schema import STEPS, migrations

MODEL = Model(name="demo:latest", digest="aaa")


def machine(letter: str) -> Machine:
    return Machine(id=f"01J0000000000000000000000{letter}", cpu=f"cpu {letter}")


def measured(store: Store, letter: str, calls: int = 3, **columns: object) -> Run:
    """A run on the machine `letter`, each call with its text."""
    store.save_machine(machine(letter))
    store.save_model(MODEL)
    run = Run(command="bench", tag=letter, machine_id=machine(letter).id, model_id=MODEL.id, **columns)
    store.start_run(run)
    for seq in range(calls):
        store.add(Call(run_id=run.id, model_id=MODEL.id, seq=seq, recalled=True), texts=("[]", f"answer {seq}"))
    store.flush()
    return run


@pytest.fixture
def mine(tmp_path) -> Iterator[Store]:
    with Store.open(tmp_path / "mine" / "lab.db") as store:
        yield store


@pytest.fixture
def other(tmp_path) -> Path:
    return tmp_path / "other" / "lab.db"


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_rows_come_in_once(mine, other):
    measured(mine, "A")
    with Store.open(other) as store:
        run = measured(store, "B")
        calls = store.calls(run.id)
    before = files(other.parent)
    assert merge(mine, other) == Copied(machines=1, models=0, runs=1, calls=3, texts=3)
    assert merge(mine, other) == Copied(machines=0, models=0, runs=0, calls=0, texts=0)
    assert {r.tag for r in mine.runs()} == {"A", "B"}
    assert mine.find_run("B") == run
    assert mine.calls(run.id) == calls
    assert mine.machine(machine("B").id) == machine("B")
    assert mine.db["texts"].count == 6
    assert files(other.parent) == before


def test_rows_go_both_ways_and_the_files_agree(mine, other):
    measured(mine, "A")
    with Store.open(other) as store:
        measured(store, "B")
        merge(mine, other)
        merge(store, mine.path)
        for table in ("machines", "models", "runs", "calls", "texts"):
            order = "call_id" if table == "texts" else "id"
            assert list(store.db[table].rows_where(order_by=order)) == list(mine.db[table].rows_where(order_by=order))


def test_rows_that_wait_in_the_queue_are_kept_too(mine, other):
    with Store.open(other) as store:
        measured(store, "B")
    run = measured(mine, "A")
    mine.add(Call(run_id=run.id, seq=99))
    merge(mine, other)
    assert [call.seq for call in mine.calls(run.id)] == [0, 1, 2, 99]


def test_a_run_merged_while_it_ran_gets_its_end(mine, other):
    with Store.open(other) as store:
        run = measured(store, "B", calls=1)
        merge(mine, other)
        store.add(Call(run_id=run.id, seq=1))
        ended = {"finished_utc": "2030-01-01T00:00:00.000Z", "outcome": "ok", "findings_json": "{}"}
        store.update_run(run.id, **ended)
        store.flush()
        assert merge(mine, other) == Copied(machines=0, models=0, runs=0, calls=1, texts=0)
    assert mine.find_run("B") == replace(run, **ended)


def test_an_older_copy_does_not_undo_the_end_of_a_run(mine, other):
    with Store.open(other) as store:
        run = measured(store, "B")
    merge(mine, other)
    mine.update_run(run.id, finished_utc="2030-01-01T00:00:00.000Z", outcome="ok")
    mine.flush()
    merge(mine, other)
    assert mine.find_run("B").outcome == "ok"


def test_the_wal_of_a_live_file_is_not_forgotten(mine, other):
    with Store.open(other) as store:
        measured(store, "B")
        assert other.with_name("lab.db-wal").stat().st_size > 0
        assert merge(mine, other).calls == 3


def test_the_wal_that_a_crash_left_is_read_and_left(mine, other, tmp_path):
    with Store.open(other) as store:
        measured(store, "B")
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for name in ("lab.db", "lab.db-wal"):
            shutil.copyfile(other.with_name(name), crashed / name)
    before = files(crashed)
    assert merge(mine, crashed / "lab.db").calls == 3
    assert {name: content for name, content in files(crashed).items() if name != "lab.db-shm"} == before


@pytest.mark.parametrize("stop_before", STEPS[1:])
def test_an_older_file_is_upgraded_in_a_copy(mine, other, stop_before):
    other.parent.mkdir()
    with closing(Database(other).conn) as connection:
        migrations().apply(Database(connection), stop_before=stop_before)
        connection.execute("INSERT INTO runs (id, command, started_utc) VALUES ('R', 'bench', '2020-01-01T00:00:00Z')")
        connection.commit()
    before = files(other.parent)
    assert merge(mine, other).runs == 1
    assert files(other.parent) == before


def test_a_newer_file_is_refused_and_nothing_comes_in(mine, other):
    with Store.open(other) as store:
        measured(store, "B")
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmlab', 'm999_later', '2030')"
        )
    with pytest.raises(StoreError, match=r"other.lab\.db was written by a newer llmlab"):
        merge(mine, other)
    assert mine.runs() == []


def test_a_missing_file_is_told(mine, other):
    with pytest.raises(StoreError, match=r"there is no database .*lab\.db"):
        merge(mine, other)
    assert not other.parent.exists()


def test_the_file_itself_is_refused(mine, tmp_path):
    with pytest.raises(UsageError, match="is the database itself"):
        merge(mine, mine.path)
    (tmp_path / "link.db").symlink_to(mine.path)
    with pytest.raises(UsageError, match="is the database itself"):
        merge(mine, tmp_path / "link.db")


def test_a_damaged_file_is_named_and_nothing_comes_in(mine, other):
    measured(mine, "A")
    with Store.open(other) as store:
        measured(store, "B", calls=300)
    size = other.stat().st_size
    with other.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xaa" * (size // 2))
    with pytest.raises(StoreError, match=r"other.lab\.db is damaged"):
        merge(mine, other)
    assert [run.tag for run in mine.runs()] == ["A"]
    assert mine.db["machines"].count == 1


WRITER = """
import sys
from pathlib import Path
from llmlab.call import Call
from llmlab.run import Run
from llmlab.store import Store

with Store.open(Path(sys.argv[1])) as store:
    run = Run(command="chat", tag="writer")
    store.start_run(run)
    for seq in range(300):
        store.add(Call(run_id=run.id, seq=seq))
        store.flush()
        if seq == 0:
            print("writing", flush=True)
"""


def test_merging_while_others_write_loses_nothing(mine, other):
    with Store.open(other) as store:
        runs = [measured(store, "B", calls=20) for _ in range(5)]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(mine.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "writing\n"
        merge(mine, other)
        while process.poll() is None:
            merge(mine, other)
        assert process.stderr.read() == ""
    assert [len(mine.calls(run.id)) for run in runs] == [20] * 5
    assert [call.seq for call in mine.calls(mine.find_run("writer").id)] == list(range(300))


def test_export_writes_the_chosen_runs_and_what_they_need(mine, tmp_path):
    first, _, third = (measured(mine, letter) for letter in "ABC")
    output = tmp_path / "out" / "small.db"
    output.parent.mkdir()
    copied = export_runs(mine, [third.id, first.id, first.id], output)
    assert copied == Copied(machines=2, models=1, runs=2, calls=6, texts=6)
    assert list(files(output.parent)) == ["small.db"]
    with Store.read(output) as store:
        assert {run.id for run in store.runs()} == {first.id, third.id}
        assert store.calls(first.id) == mine.calls(first.id)
        assert store.db.journal_mode == "delete"


def test_an_exported_file_can_be_read_as_immutable(mine, tmp_path):
    run = measured(mine, "A")
    export_runs(mine, [run.id], tmp_path / "small.db")
    with closing(sqlite3.connect(f"file:{tmp_path}/small.db?immutable=1", uri=True)) as connection:
        assert connection.execute("SELECT calls FROM run_summary").fetchall() == [(3,)]


def test_export_does_not_overwrite(mine, tmp_path):
    run = measured(mine, "A")
    (tmp_path / "small.db").write_text("mine")
    with pytest.raises(UsageError, match=r"small\.db is there already"):
        export_runs(mine, [run.id], tmp_path / "small.db")
    assert (tmp_path / "small.db").read_text() == "mine"


def test_an_export_that_fails_leaves_nothing(mine, tmp_path):
    run = measured(mine, "A")
    output = tmp_path / "out"
    output.mkdir()
    with closing(sqlite3.connect(mine.path)) as connection, connection:
        connection.execute("DROP TABLE texts")
    with pytest.raises(StoreError):
        export_runs(mine, [run.id], output / "small.db")
    assert list(output.iterdir()) == []


def test_an_exported_file_can_be_merged(mine, tmp_path, other):
    run = measured(mine, "A")
    export_runs(mine, [run.id], tmp_path / "small.db")
    with Store.open(other) as store:
        assert merge(store, tmp_path / "small.db").calls == 3
        assert store.find_run("A") == run
