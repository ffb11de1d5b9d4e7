"""The attached files: which are llmlab's, and how one is read as it stood at one moment."""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from llmlab.errors import LabError, StoreError
from llmlab.store import Store
from llmlab.store.schema import State, state

T = TypeVar("T")


class Missing(LabError):
    """The page asks for a file or a run that is not there."""


_known: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def lab_names(datasette: Any) -> set[str]:
    """The names of the attached databases known to be llmlab's."""
    return _known.get(datasette, set()) & set(datasette.databases)


async def remember(datasette: Any) -> None:
    """Look at the attached databases that were not llmlab's so far: a file may be made after the start."""
    known = _known.setdefault(datasette, set())
    for name, database in list(datasette.databases.items()):
        if name in known or name == "_internal":
            continue
        # A file that cannot be opened is Datasette's to complain of.
        with suppress(sqlite3.Error):
            if await database.execute_fn(_is_lab):
                known.add(name)


async def read(datasette: Any, name: str, question: Callable[[Store], T]) -> T:
    """The answer to `question` on one state of the file, even while it is being written.

    Missing where no such database is attached or it is not llmlab's; StoreError where its schema is not this
    program's.
    """
    await remember(datasette)
    if name not in lab_names(datasette):
        raise Missing(f"The database {name} is not llmlab's", "There are no runs in it to show")
    database = datasette.databases[name]
    path = Path(Path(database.path or name).name)  # visitors need not know where files lie

    def in_one_state(connection: sqlite3.Connection) -> T:
        connection.execute("BEGIN")
        try:
            if state(connection, path) is not State.CURRENT:
                raise StoreError(
                    f"the database {path} was made by an older llmlab",
                    f"Open it with: llmlab browse --db {path}",
                )
            return question(Store(path, connection, None, ExitStack()))
        finally:
            connection.rollback()

    answer: T = await database.execute_fn(in_one_state)
    return answer


def stale_wal(datasette: Any) -> list[Path]:
    """The llmlab files opened as immutable although newer rows wait in a -wal file beside them."""
    databases = [datasette.databases[name] for name in lab_names(datasette)]
    paths = [Path(d.path) for d in databases if d.path and not d.is_mutable]
    return [path for path in paths if (wal := path.with_name(f"{path.name}-wal")).exists() and wal.stat().st_size]


def _is_lab(connection: sqlite3.Connection) -> bool:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE name IN ('runs', 'calls', '_sqlite_migrations')")
    if len(tables.fetchall()) < 3:
        return False
    ours = connection.execute("SELECT 1 FROM _sqlite_migrations WHERE migration_set = 'llmlab'")
    return ours.fetchone() is not None
