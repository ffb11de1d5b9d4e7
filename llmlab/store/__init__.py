"""Store: the one file in which every call is a row."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from llmlab.call import Call
from llmlab.errors import StoreError, UsageError
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import rows
from llmlab.store.connection import BUSY_TIMEOUT_S, connect, database_uri, open_writable, readable
from llmlab.store.fault import store_error
from llmlab.store.writer import Writer

if TYPE_CHECKING:
    from sqlite_utils import Database

# How many of a model's newest calls are looked through for pairs to calibrate with.
_CALIBRATION_SCAN = 2_000


class Store:
    """The database of runs and calls.

    Made by `open` or `read`. Writing is queued and done by one thread, in the order of the calls; `saved` and `flush`
    return when all of it is durable: it outlives a kill -9. Reading happens in the thread that opened the store, and
    sees what is durable.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, writer: Writer | None, cleanup: ExitStack) -> None:
        self.path = path
        self._connection = connection
        self._writer = writer
        self._cleanup = cleanup
        self._database: Database | None = None

    @classmethod
    def open(cls, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> "Store":
        """Open for writing; make and migrate the file where needed. StoreError says why it cannot be."""
        path = path.absolute()
        connection = open_writable(path, busy_timeout_s)
        cleanup = ExitStack()
        cleanup.callback(connection.close)
        try:
            writing = connect(database_uri(path, "mode=rw"), busy_timeout_s=busy_timeout_s, any_thread=True)
            writer = Writer(path, writing)
        except (sqlite3.Error, OSError) as error:
            cleanup.close()
            raise store_error(path, error) from None
        return cls(path, connection, writer, cleanup)

    @classmethod
    def read(cls, path: Path) -> "Store":
        """Open for reading; the file is never changed, upgraded or made. A file that is not there is an empty store."""
        path = path.absolute()
        cleanup = ExitStack()
        try:
            if path.exists():
                connection = connect(cleanup.enter_context(readable(path)))
                cleanup.callback(connection.close)
            else:
                connection = _empty()
                cleanup.callback(connection.close)
        except (sqlite3.Error, OSError) as error:
            cleanup.close()
            raise store_error(path, error) from None
        return cls(path, connection, None, cleanup)

    @property
    def db(self) -> "Database":
        """The file as a sqlite_utils.Database, for reading in the thread that opened the store."""
        if self._database is None:
            from sqlite_utils import Database

            self._database = Database(self._connection, recursive_triggers=False)
        return self._database

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Writing

    def save_machine(self, machine: Machine) -> None:
        """Queue a machine; what is known of it already is kept where `machine` does not say."""
        self._write(partial(rows.save_row, sql=rows.SAVE_MACHINE, row=machine.row()))

    def save_model(self, model: Model) -> None:
        """Queue a model; what is known of it already is kept where `model` does not say."""
        self._write(partial(rows.save_row, sql=rows.SAVE_MODEL, row=model.row()))

    def start_run(self, run: Run) -> None:
        """Queue a run; its machine and model must have been saved before."""
        self._write(partial(rows.save_row, sql=rows.SAVE_RUN, row=run.row()))

    def update_run(self, run_id: str, **columns: Any) -> None:
        """Queue new values for some columns of a run."""
        unknown = sorted(set(columns) - set(rows.RUN_COLUMNS))
        if unknown:
            raise TypeError(f"runs has no column {', '.join(unknown)}")
        self._write(partial(rows.update_run, run_id=run_id, columns=columns))

    def add(self, call: Call, *, texts: tuple[str, str] | None = None) -> None:
        """Queue a call, with (prompt_json, answer) where texts are kept; a call added again replaces its row.

        Never waits for the disk.
        """
        self._write(partial(rows.save_call, call=call, texts=texts))

    @property
    def unsaved(self) -> int:
        """How many rows are queued and not yet durable."""
        return self._writer.unsaved if self._writer is not None else 0

    async def saved(self) -> None:
        """Wait, without holding up the event loop, until every row queued so far is durable."""
        if self._writer is not None:
            await asyncio.wrap_future(self._writer.saved())

    def flush(self) -> None:
        """Wait until every row queued so far is durable."""
        if self._writer is not None:
            self._writer.saved().result()

    def close(self) -> None:
        """Flush and close; idempotent. Where rows cannot be saved it stays open, and closing again tries again."""
        writer = self._writer
        if writer is not None:
            try:
                writer.saved().result()
            except StoreError:
                if not writer.unsaved:
                    self._shut(writer)
                raise
            self._shut(writer)
        else:
            self._cleanup.close()

    def _shut(self, writer: Writer) -> None:
        self._writer = None
        writer.stop()
        self._cleanup.close()

    def _write(self, write: "partial[None]") -> None:
        if self._writer is None:
            raise StoreError(f"the database {self.path} is not open for writing")
        self._writer.put(write)

    # Reading

    def calls(self, run_id: str) -> list[Call]:
        """The calls of a run, in the order they were made."""
        return [
            rows.call_of(row)
            for row in self._select(
                f"SELECT {', '.join(rows.CALL_COLUMNS)} FROM calls WHERE run_id = ? ORDER BY seq, id", run_id
            )
        ]

    def runs(self, command: str | None = None, tag: str | None = None, limit: int | None = None) -> list[Run]:
        """Runs, newest first; of one command, with one tag, at most `limit`."""
        return self._runs(
            "(?1 IS NULL OR command = ?1) AND (?2 IS NULL OR tag = ?2) ORDER BY started_utc DESC, id DESC LIMIT ?3",
            command,
            tag,
            -1 if limit is None else limit,
        )

    def find_run(self, word: str, command: str | None = None) -> Run:
        """The run that `word` names: a full id, its last six or more characters, or a tag (its newest run).

        With `command`, a tag means its newest run of that command. UsageError names what there is.
        """
        if len(word) >= 6:
            found = self._runs("substr(id, -length(?1)) = ?1", word.upper())
            if len(found) > 1:
                raise UsageError(f"{word!r} fits {len(found)} runs", f"Give more of the id: {_listed(found)}")
            if found:
                return found[0]
        tagged = self.runs(command, tag=word, limit=1)
        if tagged:
            return tagged[0]
        raise UsageError(f"no run or tag {word!r} in {self.path}", self._what_there_is(command))

    def machine(self, machine_id: str | None) -> Machine | None:
        """A machine by its id."""
        found = self._select(f"SELECT {', '.join(rows.MACHINE_COLUMNS)} FROM machines WHERE id = ?", machine_id)
        return rows.machine_of(found[0]) if found else None

    def model(self, model_id: str | None) -> Model | None:
        """A model by its id."""
        found = self._select(f"SELECT {', '.join(rows.MODEL_COLUMNS)} FROM models WHERE id = ?", model_id)
        return rows.model_of(found[0]) if found else None

    def calibration_pairs(self, model_id: str, limit: int = 200) -> list[tuple[int, int]]:
        """(uncalibrated estimate, prompt tokens) of a model's newest ok calls that the server did not cut."""
        return self._select(
            """
            SELECT prompt_tokens_estimate, prompt_tokens FROM (
                SELECT * FROM calls WHERE model_id = ? ORDER BY rowid DESC LIMIT ?
            )
            WHERE outcome = 'ok' AND coalesce(cut, 'no') = 'no' AND prompt_tokens_estimate > 0 AND prompt_tokens > 0
            LIMIT ?
            """,
            model_id,
            _CALIBRATION_SCAN,
            limit,
        )

    def query(self, sql: str, **named: Any) -> list[dict[str, Any]]:
        """The rows of a SELECT by the names of their columns; `:word` in it stands for `named["word"]`."""
        values = {name: rows.storable(value) for name, value in named.items()}
        try:
            cursor = self._connection.execute(sql, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, map(rows.shown, row), strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise store_error(self.path, error) from None

    def _runs(self, where: str, *values: Any) -> list[Run]:
        sql = f"SELECT {', '.join(rows.RUN_COLUMNS)} FROM runs WHERE {where}"
        return [rows.run_of(row) for row in self._select(sql, *values)]

    def _what_there_is(self, command: str | None) -> str:
        tags = self._select(
            """
            SELECT tag FROM runs WHERE tag IS NOT NULL AND (?1 IS NULL OR command = ?1)
            GROUP BY tag ORDER BY max(started_utc) DESC LIMIT 10
            """,
            command,
        )
        if tags:
            return f"Tags there are: {', '.join(str(rows.shown(tag)) for (tag,) in tags)}"
        if self.runs(command, limit=1):
            return "No run has a tag; list them with: llmlab runs"
        return "There are no runs yet; measure one with: llmlab bench --tag NAME"

    def _select(self, sql: str, *values: Any) -> list[Any]:
        try:
            return self._connection.execute(sql, tuple(map(rows.storable, values))).fetchall()
        except sqlite3.Error as error:
            raise store_error(self.path, error) from None


def _empty() -> sqlite3.Connection:
    from sqlite_utils import Database

    from llmlab.store.schema import migrations

    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrations().apply(Database(connection))
    return connection


def _listed(runs: Sequence[Run]) -> str:
    return ", ".join(f"{run.id} ({run.tag or run.command})" for run in runs[:5])
