"""The schema of the file: which steps it has, which it lacks, and the upgrade."""

import runpy
import sqlite3
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmlab.errors import StoreError
from llmlab.store.fault import store_error

if TYPE_CHECKING:
    from sqlite_utils import Migrations

# The names of the migrations, in order. Written down here too, so that a file that is up to date opens without
# importing sqlite_utils.
STEPS = ("m001_tables", "m002_views")
TABLES = ("machines", "models", "runs", "calls", "texts")


class State(Enum):
    """How a database stands to this program's schema."""

    EMPTY = "empty"
    OLDER = "older"
    CURRENT = "current"


def migrations() -> "Migrations":
    """The migrations, from the installed wheel or from a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package, package.parent):
        file = folder / "migrations" / "migrations.py"
        if file.is_file():
            found: Migrations = runpy.run_path(str(file))["migrations"]
            return found
    raise StoreError("llmlab's migrations/migrations.py is missing", "Install llmlab again")


def state(connection: sqlite3.Connection, path: Path) -> State:
    """How the database stands; StoreError where it is newer, half made or not ours. Reads only."""
    applied = _applied(connection)
    unknown = [name for name in applied if name not in STEPS]
    if unknown:
        raise StoreError(
            f"the database {path} was written by a newer llmlab "
            f"(schema {len(applied)} with {unknown[-1]}, this one knows {len(STEPS)})",
            "Upgrade llmlab: pip install -U llmlab",
        )
    if len(applied) == len(STEPS):
        return State.CURRENT
    if applied:
        return State.OLDER
    _refuse_strangers(connection, path)
    return State.EMPTY


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Apply what is missing: all of it or nothing, and only once when many programs try at the same moment."""
    from sqlite_utils import Database

    steps = migrations()
    connection.execute("BEGIN IMMEDIATE")
    try:
        if state(connection, path) is not State.CURRENT:
            steps.apply(Database(connection, recursive_triggers=False, execute_plugins=False))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def upgrade_failed(path: Path, error: sqlite3.Error) -> StoreError:
    """What to say when `upgrade` met `error`; nothing was changed."""
    if getattr(error, "sqlite_errorname", "") != "SQLITE_ERROR":
        return store_error(path, error)
    return StoreError(
        f"the database {path} cannot be brought to this llmlab's schema and was left as it is: {error}",
        "Keep a copy of the file and choose another with --db or LLMLAB_DB",
    )


def _applied(connection: sqlite3.Connection) -> list[str]:
    try:
        rows: list[Any] = connection.execute(
            "SELECT name FROM _sqlite_migrations WHERE migration_set = 'llmlab' ORDER BY rowid"
        ).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        return []  # no such table, or one of another shape: not ours
    return [name for (name,) in rows]


def _refuse_strangers(connection: sqlite3.Connection, path: Path) -> None:
    """Nothing of ours is recorded: then nothing at all may be in the file."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
    names = sorted(name for (name,) in rows if "_sqlite_migrations" not in name)
    if not names:
        return
    if set(names) & {"calls", "runs"}:
        raise StoreError(
            f"the database {path} is half made, or not llmlab's: it holds {', '.join(names[:5])} "
            "but no record of a schema",
            "Keep a copy of the file and choose another with --db or LLMLAB_DB",
        )
    raise StoreError(
        f"the database {path} is not llmlab's: it holds {', '.join(names[:5])}",
        "Choose another file with --db or LLMLAB_DB",
    )
