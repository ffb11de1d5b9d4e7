"""Bring another file's rows in; the copying is also what export does."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmlab.errors import UsageError
from llmlab.store import Store
from llmlab.store.connection import connect, database_uri, readable
from llmlab.store.fault import store_error

# Which rows belong to the runs named in temp.wanted; the order satisfies the foreign keys.
_OF_WANTED_RUNS = {
    "machines": "id IN (SELECT machine_id FROM other.runs JOIN temp.wanted ON run_id = id)",
    "models": """id IN (SELECT model_id FROM other.runs JOIN temp.wanted ON run_id = id
        UNION SELECT model_id FROM other.calls WHERE run_id IN (SELECT run_id FROM temp.wanted))""",
    "runs": "id IN (SELECT run_id FROM temp.wanted)",
    "calls": "run_id IN (SELECT run_id FROM temp.wanted)",
    "texts": """call_id IN (SELECT id FROM other.calls WHERE run_id IN (SELECT run_id FROM temp.wanted))""",
}


@dataclass(frozen=True, slots=True)
class Copied:
    """How many rows of each table were new."""

    machines: int
    models: int
    runs: int
    calls: int
    texts: int


def merge(store: Store, other: Path) -> Copied:
    """Bring in all rows of the database `other` that `store` lacks, in one transaction; again, it changes nothing.

    A run known already is brought up to date where `other` finished it later. `other` is read as it stands, its -wal
    file included, and never changed; where its schema is older, a temporary copy is upgraded.
    """
    store.flush()
    if other.exists() and store.path.exists() and other.samefile(store.path):
        raise UsageError(f"{other} is the database itself", "Name the other machine's file")
    with readable(other) as uri, attached(store.path, uri, name=other) as connection:
        return copy_rows(connection)


@contextmanager
def attached(path: Path, uri: str, *, name: Path) -> Iterator[sqlite3.Connection]:
    """A transaction on the database at `path` with the one at `uri` (`name` for people) attached as `other`."""
    try:
        with closing(connect(database_uri(path, "mode=rw"))) as connection:
            connection.execute("ATTACH ? AS other", (uri,))
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")  # closing without it takes everything back
    except sqlite3.DatabaseError as error:
        broken = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
        raise store_error(name if broken else path, error) from None


def copy_rows(connection: sqlite3.Connection, *, wanted: bool = False, texts: bool = True) -> Copied:
    """Copy from `other` to `main` what is not there yet; with `wanted`, only what belongs to runs in temp.wanted."""
    conditions = {table: condition if wanted else "true" for table, condition in _OF_WANTED_RUNS.items()}
    if not texts:
        conditions["texts"] = "false"
    counts = {table: _copy(connection, table, condition) for table, condition in conditions.items()}
    _bring_up_to_date(connection)
    return Copied(**counts)


def _copy(connection: sqlite3.Connection, table: str, condition: str) -> int:
    key = "call_id" if table == "texts" else "id"
    columns = ", ".join(_columns(connection, table))
    return connection.execute(f"""
        INSERT INTO main.{table} ({columns}) SELECT {columns} FROM other.{table} AS new
        WHERE {condition} AND NOT EXISTS (SELECT 1 FROM main.{table} WHERE {key} = new.{key})
        ORDER BY new.rowid
    """).rowcount


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """A run copied while it ran, or resumed since, has its end only in the newer file."""
    columns = ", ".join(_columns(connection, "runs"))
    connection.execute(f"""
        UPDATE main.runs SET ({columns}) = (SELECT {columns} FROM other.runs AS new WHERE new.id = main.runs.id)
        WHERE EXISTS (
            SELECT 1 FROM other.runs AS new
            WHERE new.id = main.runs.id AND new.finished_utc > coalesce(main.runs.finished_utc, '')
        )
    """)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})")]
