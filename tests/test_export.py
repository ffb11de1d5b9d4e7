"""Export: a small database of chosen runs, without what is private."""

import io
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from lesson_runs import keep, lesson_calls, lesson_run, prompt_call

from llmlab.call import Call
from llmlab.errors import StoreError, UsageError
from llmlab.export import export
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.report.document import Report
from llmlab.report.selection import select
from llmlab.run import Run
from llmlab.store import Store
from llmlab.store.export import without_places

QWEN = Model(name="qwen2.5:3b", digest="aaa")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


def bench(db: Path, number: int, tag: str, *more: Call) -> Run:
    calls = [replace(call, model_id=QWEN.id) for call in (*lesson_calls(number), *more)]
    return keep(db, lesson_run(number, tag=tag), calls, QWEN, Machine(id=tag, cpu="Test CPU"))


def with_texts(db: Path, run: Run, prompt: str, answer: str) -> None:
    with Store.open(db) as store:
        store.add(Call(run_id=run.id, purpose="answer"), texts=(prompt, answer))


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return found


def test_the_chosen_runs_and_nothing_else_are_written(db: Path, tmp_path: Path) -> None:
    first, second, third = (bench(db, n, tag) for n, tag in ((1, "laptop"), (2, "desktop"), (1, "other")))
    said = io.StringIO()
    export(db, ["laptop", second.id[-6:], "laptop"], tmp_path / "share.db", stream=said)
    assert said.getvalue() == f"{tmp_path / 'share.db'}: 2 runs, 40 calls, no texts\n"
    with Store.read(tmp_path / "share.db") as store:
        assert {run.id for run in store.runs()} == {first.id, second.id}
        assert third.id not in {run.id for run in store.runs()}
        assert store.machine("laptop") and store.machine("desktop") and not store.machine("other")


def test_a_report_of_the_export_is_the_report_of_the_original(db: Path, tmp_path: Path) -> None:
    bench(db, 1, "laptop")
    bench(db, 2, "desktop")
    export(db, ["laptop", "desktop"], tmp_path / "share.db", stream=io.StringIO())
    with Store.read(db) as here, Store.read(tmp_path / "share.db") as there:
        reports = [Report.of(select(store, ["laptop", "desktop"])) for store in (here, there)]
    assert reports[0] == reports[1] and reports[0].rows


def test_texts_go_along_only_when_asked_for(db: Path, tmp_path: Path) -> None:
    run = bench(db, 1, "laptop")
    with_texts(db, run, "my secret question", "a secret answer")
    export(db, ["laptop"], tmp_path / "plain.db", stream=io.StringIO())
    assert count(tmp_path / "plain.db", "texts") == 0
    assert b"secret" not in (tmp_path / "plain.db").read_bytes()
    said = io.StringIO()
    export(db, ["laptop"], tmp_path / "full.db", texts=True, stream=said)
    assert count(tmp_path / "full.db", "texts") == 1 and "1 text\n" in said.getvalue()


@pytest.mark.parametrize(
    ("error", "left"),
    [
        ("no server at http://tester:***@10.0.0.5:11434/x", "no server at (address)"),
        ("connect to 192.168.1.20:8080 failed", "connect to (address) failed"),
        ("no answer from [fe80::1]:11434", "no answer from (address)"),
        ("proxy annas-laptop.lan:3128 refused", "proxy (address) refused"),
        ("open /home/anna/.ollama/models/blobs/sha256-aa: no such file", "open (path): no such file"),
        (r"open C:\Users\anna\model.gguf: denied", "open (path): denied"),
        ("cannot read ~/models/a.gguf", "cannot read (path)"),
        (
            "the prompt is too long: 1,458 of 512 tokens, 9 tok/s",
            "the prompt is too long: 1,458 of 512 tokens, 9 tok/s",
        ),
        ("model 'qwen2.5:3b' not found, version 0.12.6", "model 'qwen2.5:3b' not found, version 0.12.6"),
    ],
)
def test_errors_lose_their_addresses_and_paths(db: Path, tmp_path: Path, error: str, left: str) -> None:
    assert without_places(error) == left
    bench(db, 1, "laptop", prompt_call(5, 5, 1, 1, 1, outcome="error", error=error))
    export(db, ["laptop"], tmp_path / "share.db", stream=io.StringIO())
    data = (tmp_path / "share.db").read_bytes()
    assert left.encode() in data
    assert not re.search(rb"anna|10\.0\.0\.5|192\.168|fe80", data)
    with Store.read(db) as store:
        assert error in [call.error for call in store.calls(store.find_run("laptop").id)]


def test_an_unknown_run_and_a_file_that_is_there_are_refused(db: Path, tmp_path: Path) -> None:
    bench(db, 1, "laptop")
    with pytest.raises(UsageError, match="Tags there are: laptop"):
        export(db, ["laptop", "nothing"], tmp_path / "share.db")
    assert not (tmp_path / "share.db").exists()
    (tmp_path / "share.db").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        export(db, ["laptop"], tmp_path / "share.db")
    with pytest.raises(StoreError):
        export(db, ["laptop"], db / "share.db")


def test_rows_that_are_still_in_the_wal_file_go_along(db: Path, tmp_path: Path) -> None:
    with Store.open(db) as store:
        run = Run(command="chat", tag="now")
        store.start_run(run)
        store.add(Call(run_id=run.id))
        store.flush()
        export(db, ["now"], tmp_path / "share.db", stream=io.StringIO())
    assert count(tmp_path / "share.db", "calls") == 1
