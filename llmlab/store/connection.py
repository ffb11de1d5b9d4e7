"""Connections to the file, and a way to read a file that must not be changed."""

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from llmlab.errors import StoreError
from llmlab.store.fault import store_error
from llmlab.store.schema import State, state, upgrade, upgrade_failed

BUSY_TIMEOUT_S = 30.0


def database_uri(path: Path, query: str) -> str:
    """`path` as SQLite's URI, whatever characters it holds; `query` is `mode=ro` and the like."""
    absolute = path.absolute().as_posix()
    return f"file://{'' if absolute.startswith('/') else '/'}{quote(os.fsencode(absolute))}?{query}"


def connect(uri: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, any_thread: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode with foreign keys; transactions are begun by name."""
    connection = sqlite3.connect(
        uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=not any_thread
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first read is what fails
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def open_writable(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """The file at `path` ready to be written: made (for its owner only) and migrated where needed, in WAL mode."""
    try:
        _create(path)
        connection = connect(database_uri(path, "mode=rw"), busy_timeout_s=busy_timeout_s)
    except (sqlite3.Error, OSError, ValueError) as error:
        raise store_error(path, error) from None
    try:
        stands = state(connection, path)
        _use_wal(connection, busy_timeout_s)
        if stands is State.CURRENT:
            # Nothing was written yet: find out now, not after minutes of measuring, whether the file lets us.
            connection.execute("UPDATE runs SET tag = tag WHERE false")
        else:
            upgrade(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise upgrade_failed(path, error) from None
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def readable(path: Path) -> Iterator[str]:
    """The URI of the database at `path`, or of a temporary copy of it, with this program's schema; never changes it.

    A copy is needed where the file is of an older schema, or where its folder cannot be written while a -wal file holds
    rows that are not in the main file yet.
    """
    with ExitStack() as copies:
        try:
            had_wal = _wal(path).exists()
            uri = _reachable(path, copies)
            with closing(connect(uri)) as connection:
                if state(connection, path) is not State.CURRENT:
                    uri = _upgraded_copy(connection, path, copies)
        except (sqlite3.Error, OSError) as error:
            raise store_error(path, error) from None
        try:
            yield uri
        finally:
            if not had_wal:
                _tidy(path)


def _create(path: Path) -> None:
    real = Path(os.path.realpath(path))  # a link may point to a file that is not made yet
    real.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    if not real.is_file():  # SQLite would write a journal beside /dev/null
        raise OSError(0, "it is a folder or a device, not a file")


def _use_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch to WAL. SQLite does not wait here when others switch at the same moment, so the waiting is ours."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _reachable(path: Path, copies: ExitStack) -> str:
    """A URI by which `path` can be read as it stands now, its -wal file included."""
    if not path.is_file():
        raise StoreError(f"there is no database {path}", "Check the path")
    try:
        connect(database_uri(path, "mode=ro")).close()
        return database_uri(path, "mode=ro")
    except sqlite3.OperationalError as error:
        # A file in WAL mode cannot even be read where SQLite may not write its -shm file beside it.
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
    wal = _wal(path)
    if not wal.exists() or wal.stat().st_size == 0:
        return database_uri(path, "mode=ro&immutable=1")
    copy = _new_folder(copies) / "read.db"
    shutil.copyfile(path, copy)
    shutil.copyfile(wal, _wal(copy))
    return database_uri(copy, "mode=rw")


def _upgraded_copy(connection: sqlite3.Connection, path: Path, copies: ExitStack) -> str:
    copy = _new_folder(copies) / "upgraded.db"
    with closing(sqlite3.connect(copy)) as target:
        connection.backup(target)
    uri = database_uri(copy, "mode=rw")
    with closing(connect(uri)) as upgraded:
        try:
            upgrade(upgraded, path)
        except sqlite3.Error as error:
            raise upgrade_failed(path, error) from None
    return uri


def _new_folder(copies: ExitStack) -> Path:
    return Path(copies.enter_context(tempfile.TemporaryDirectory(prefix="llmlab-", ignore_cleanup_errors=True)))


def _tidy(path: Path) -> None:
    """Reading through mode=ro leaves empty -wal and -shm files behind; closing as a writer takes them away again."""
    if _wal(path).exists():
        with suppress(sqlite3.Error):
            connect(database_uri(path, "mode=rw")).close()


def _wal(path: Path) -> Path:
    real = path.resolve()  # SQLite keeps it beside the file itself, not beside a link
    return real.with_name(real.name + "-wal")
