"""What goes wrong with disks, locks and processes: told in one line, and nothing that was confirmed is lost."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from llmlab.call import Call
from llmlab.errors import Exit, StoreError
from llmlab.run import Run
from llmlab.store import Store
from llmlab.store.merge import merge

RUN = Run(id="01J0000000000000000000000R", command="bench")
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions, signals and open files")


def started(path: Path, **options: float) -> Store:
    store = Store.open(path, **options)
    store.start_run(RUN)
    store.flush()
    return store


def calls_in(path: Path) -> int:
    with Store.read(path) as store:
        return len(store.calls(RUN.id))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody whom file permissions bind; root is not bound by them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def permissions(path: Path, mode: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def test_a_locked_file_is_told_and_the_rows_wait(tmp_path):
    path = tmp_path / "lab.db"
    with closing(started(path, busy_timeout_s=0.01)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as browser:
            browser.execute("BEGIN IMMEDIATE")
            for seq in range(3):
                store.add(Call(run_id=RUN.id, seq=seq))
            with pytest.raises(
                StoreError, match=r"lab\.db is locked by another program; 3 rows not saved\. Close "
            ) as met:
                store.flush()
            assert met.value.exit_code == Exit.STORE
            with pytest.raises(StoreError, match="3 rows not saved"):
                store.close()
        store.flush()
        assert calls_in(path) == 3


async def test_everybody_who_waits_is_told(tmp_path):
    path = tmp_path / "lab.db"
    with closing(started(path, busy_timeout_s=0.01)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as browser:
            browser.execute("BEGIN IMMEDIATE")
            store.add(Call(run_id=RUN.id))
            with pytest.raises(StoreError, match="1 row not saved"):
                await store.saved()
        await store.saved()
        assert calls_in(path) == 1


def test_a_file_locked_while_it_is_opened_is_told(tmp_path):
    path = tmp_path / "lab.db"
    started(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as browser:
        browser.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"lab\.db is locked"):
            Store.open(path, busy_timeout_s=0.01)


@posix_only
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_moved_away_while_open_is_told_and_may_come_back(tmp_path, replaced):
    path = tmp_path / "lab.db"
    with closing(started(path)) as store:
        aside = path.rename(tmp_path / "aside.db")
        if replaced:
            path.write_bytes(aside.read_bytes())
        store.add(Call(run_id=RUN.id))
        with pytest.raises(
            StoreError, match=r"lab\.db was moved or removed while in use; 1 row not saved\. Put it back"
        ):
            store.flush()
        aside.replace(path)
        store.flush()
        assert calls_in(path) == 1


FULL_DISK = """
import os, resource, sys
from pathlib import Path
from llmlab.call import Call
from llmlab.errors import StoreError
from llmlab.run import Run
from llmlab.store import Store

store = Store.open(Path(sys.argv[1]))
run = Run(id=sys.argv[2], command="bench")
store.start_run(run)
store.flush()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))  # no file may grow beyond: as a full disk, the write fails
try:
    for seq in range(5_000):
        store.add(Call(run_id=run.id, seq=seq))
    store.flush()
except StoreError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.close()
"""


@posix_only
def test_a_disk_that_takes_no_more_is_told_and_the_rows_wait_for_space(tmp_path):
    path = tmp_path / "lab.db"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), RUN.id], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "lab.db cannot " in done.stdout
    assert "rows not saved" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert calls_in(path) == 5_000


KILLED = """
import sys
from pathlib import Path
from llmlab.call import Call
from llmlab.run import Run
from llmlab.store import Store

store = Store.open(Path(sys.argv[1]))
run = Run(id=sys.argv[2], command="bench")
store.start_run(run)
seq = 0
while True:
    for _ in range(3):
        store.add(Call(run_id=run.id, seq=seq), texts=("[]", "x" * 500))
        seq += 1
    store.flush()
    print(seq, flush=True)
"""


@posix_only
@pytest.mark.parametrize("confirmations", [1, 40, 400])
def test_kill_9_loses_nothing_that_was_confirmed(tmp_path, confirmations):
    path = tmp_path / "lab.db"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), RUN.id], stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(confirmations):
            confirmed = int(process.stdout.readline())
        process.kill()
        assert process.wait() == -signal.SIGKILL
        for line in process.stdout:
            if line.endswith("\n"):
                confirmed = int(line)
    with Store.open(path) as store:
        calls = store.calls(RUN.id)
        assert store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert [call.seq for call in calls] == list(range(len(calls)))
    assert len(calls) >= confirmed


ONE_OF_MANY = """
import sys
from pathlib import Path
from llmlab.call import Call
from llmlab.run import Run
from llmlab.store import Store

print("ready", flush=True)
sys.stdin.readline()
with Store.open(Path(sys.argv[1])) as store:
    run = Run(command="chat")
    store.start_run(run)
    for seq in range(20):
        store.add(Call(run_id=run.id, seq=seq))
        store.flush()
"""


def test_many_programs_start_on_a_missing_file_at_once(tmp_path):
    path = tmp_path / "new" / "lab.db"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_MANY, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in processes] == [""] * 8
    assert [process.returncode for process in processes] == [0] * 8
    with Store.read(path) as store:
        assert sorted(len(store.calls(run.id)) for run in store.runs()) == [20] * 8


@posix_only
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_that_cannot_be_written_is_told(open_folder, mode):
    folder = open_folder / "closed"
    folder.mkdir()
    with permissions(folder, mode), unprivileged(), pytest.raises(StoreError, match=r"lab\.db .*--db or LLMLAB_DB"):
        Store.open(folder / "lab.db")
    assert list(folder.iterdir()) == []


@posix_only
def test_a_file_that_cannot_be_written_is_told_when_it_is_opened(open_folder):
    path = open_folder / "lab.db"
    started(path).close()
    with (
        permissions(path, 0o444),
        unprivileged(),
        pytest.raises(StoreError, match=r"lab\.db cannot be written\. Allow writing to the file and its folder"),
    ):
        Store.open(path)


@posix_only
def test_a_file_that_may_not_be_read_is_told(open_folder):
    path = open_folder / "lab.db"
    started(path).close()
    with permissions(path, 0o000), unprivileged():
        for opened in (Store.open, Store.read):
            with pytest.raises(StoreError, match=r"lab\.db cannot be (opened|read|used)"):
                opened(path)


@posix_only
def test_a_file_in_a_closed_folder_can_be_read(open_folder):
    path = open_folder / "closed" / "lab.db"
    started(path).close()
    path.chmod(0o644)
    with permissions(path.parent, 0o555), unprivileged():
        assert calls_in(path) == 0
        with pytest.raises(StoreError, match="cannot be written"):
            Store.open(path)
    assert [p.name for p in path.parent.iterdir()] == ["lab.db"]


@posix_only
@pytest.mark.parametrize("merging", [False, True])
def test_a_file_in_a_closed_folder_is_read_with_its_wal(open_folder, merging):
    """As a crash or a copy of a live file leaves it: the newest rows are in the -wal file alone."""
    live = open_folder / "live" / "lab.db"
    closed = open_folder / "closed"
    closed.mkdir()
    with started(live) as store:
        store.add(Call(run_id=RUN.id))
        store.flush()
        for name in ("lab.db", "lab.db-wal"):
            shutil.copyfile(live.with_name(name), closed / name)
    before = {file.name: file.read_bytes() for file in closed.iterdir()}
    assert sorted(before) == ["lab.db", "lab.db-wal"]
    with permissions(closed, 0o555), unprivileged():
        if merging:
            with Store.open(open_folder / "mine" / "lab.db") as mine:
                assert merge(mine, closed / "lab.db").calls == 1
                assert len(mine.calls(RUN.id)) == 1
        else:
            assert calls_in(closed / "lab.db") == 1
    assert {file.name: file.read_bytes() for file in closed.iterdir()} == before


def test_reading_leaves_no_files_behind_and_takes_none_away(tmp_path):
    path = tmp_path / "lab.db"
    started(path).close()
    before = path.read_bytes()
    assert calls_in(path) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["lab.db"]
    assert path.read_bytes() == before
    with started(path) as store:
        assert calls_in(path) == 0
        assert {p.name for p in tmp_path.iterdir()} == {"lab.db", "lab.db-wal", "lab.db-shm"}
        store.add(Call(run_id=RUN.id))
        store.flush()
        assert calls_in(path) == 1


@pytest.mark.parametrize("opened", [Store.open, Store.read])
def test_a_folder_is_no_database(tmp_path, opened):
    with pytest.raises(StoreError, match=str(tmp_path.name)):
        opened(tmp_path)


@pytest.mark.parametrize("path", ["/dev/null", "/proc/none/lab.db", "a\0b"])
@posix_only
def test_a_path_that_cannot_be_a_database_is_told(path):
    with pytest.raises(StoreError, match=r"the database .* (cannot be|gives an error)"):
        Store.open(Path(path))


def test_a_link_to_a_file_that_is_not_there_yet_makes_it(tmp_path):
    link = tmp_path / "lab.db"
    link.symlink_to(tmp_path / "disk" / "real.db")
    started(link).close()
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["real.db"]
    assert calls_in(link) == 0


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        StoreError, match=r"lab\.db cannot be used: Not a directory|lab\.db cannot be used: File exists"
    ):
        Store.open(tmp_path / "file" / "lab.db")


def test_a_damaged_page_is_told(tmp_path):
    path = tmp_path / "lab.db"
    with started(path) as store:
        for _ in range(200):
            store.add(Call(run_id=RUN.id))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xaa" * (size // 2))
    with pytest.raises(StoreError, match=r"lab\.db is damaged\. Keep a copy"):
        calls_in(path)
