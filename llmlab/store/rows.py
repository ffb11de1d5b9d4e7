"""Records as rows and back: what SQLite cannot hold becomes NULL with a note, the rest of the row is kept."""

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from llmlab.call import Call, add_flag
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run

CALL_COLUMNS = tuple(f.name for f in fields(Call))
RUN_COLUMNS = tuple(f.name for f in fields(Run))
MODEL_COLUMNS = tuple(f.name for f in fields(Model) if f.name != "modified_utc")
MACHINE_COLUMNS = tuple(f.name for f in fields(Machine))

# Counts and durations of a call are never negative; a CHECK refuses them from any other writer.
_CALL_FIGURES = frozenset(f.name for f in fields(Call) if f.type in (int, int | None))
_LARGEST = 2**63 - 1


def storable(value: Any) -> Any:
    """`value` as SQLite can hold it; None for NaN, infinity, integers beyond 64 bits and what is no plain value."""
    if isinstance(value, str):
        # Lone surrogates have no UTF-8 form.
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int):
        return value if -_LARGEST - 1 <= value <= _LARGEST else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def storable_figure(value: Any) -> int | None:
    """`value` as a count or a duration: a whole number from zero up to 64 bits, else None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= _LARGEST else None


def save_call(connection: sqlite3.Connection, call: Call, texts: tuple[str, str] | None) -> None:
    """Write a call, or write it anew where its id is known; what cannot be held is noted in `flags`."""
    row: dict[str, Any] = {}
    lost: list[str] = []
    for name, value in zip(CALL_COLUMNS, map(call.__getattribute__, CALL_COLUMNS), strict=True):
        row[name] = stored = storable_figure(value) if name in _CALL_FIGURES else storable(value)
        if stored is None and value is not None:
            lost.append(name)
    for name in lost:
        row["flags"] = add_flag(row["flags"], f"unstorable_{name}")
    connection.execute(_SAVE_CALL, tuple(row.values()))
    if texts is not None:
        connection.execute(_SAVE_TEXTS, (call.id, *map(storable, texts)))


def save_row(connection: sqlite3.Connection, sql: str, row: Mapping[str, Any]) -> None:
    connection.execute(sql, tuple(map(storable, row.values())))


def update_run(connection: sqlite3.Connection, run_id: str, columns: Mapping[str, Any]) -> None:
    sets = ", ".join(f"{name} = ?" for name in columns)
    connection.execute(f"UPDATE runs SET {sets} WHERE id = ?", (*map(storable, columns.values()), run_id))


class _Reader:
    """Reads the rows of one kind of record. SQLite lets other programs put any type into any column: a value of a type
    that is not the record's is read as that type where it can be, else as unknown.
    """

    def __init__(self, record: Any, columns: Iterable[str]) -> None:
        types = {f.name: f.type for f in fields(record)}
        self._types = tuple(_plain_type(types[name]) for name in columns)
        self._known: set[tuple[type, ...]] = set()

    def __call__(self, row: Iterable[Any]) -> tuple[Any, ...]:
        values = tuple(row)
        found = tuple(map(type, values))
        if found in self._known:
            return values
        if all(is_ in (wanted, type(None)) for is_, wanted in zip(found, self._types, strict=True)):
            self._known.add(found)
            return values
        return tuple(map(_as_type, values, self._types))


def _plain_type(annotation: Any) -> type:
    """How a field is stored: as a number, or as text."""
    if annotation in (bool, bool | None, int, int | None):
        return int
    return float if annotation in (float, float | None) else str


def _as_type(value: Any, wanted: type) -> Any:
    if value is None or type(value) is wanted:
        return value
    if wanted is str:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if wanted is int:
        return storable_figure(value)
    return float(value) if isinstance(value, int) else None


_CALL_READER = _Reader(Call, CALL_COLUMNS)
_RUN_READER = _Reader(Run, RUN_COLUMNS)
_MODEL_READER = _Reader(Model, MODEL_COLUMNS)
_MACHINE_READER = _Reader(Machine, MACHINE_COLUMNS)


def call_of(row: Iterable[Any]) -> Call:
    """The call of a row of CALL_COLUMNS."""
    values = dict(zip(CALL_COLUMNS, _CALL_READER(row), strict=True))
    if values["recalled"] is not None:
        values["recalled"] = bool(values["recalled"])
    values["pieces"] = values["pieces"] or 0
    return Call(**values)


def run_of(row: Iterable[Any]) -> Run:
    """The run of a row of RUN_COLUMNS."""
    return Run(**dict(zip(RUN_COLUMNS, _RUN_READER(row), strict=True)))


def model_of(row: Iterable[Any]) -> Model:
    """The model of a row of MODEL_COLUMNS."""
    values = dict(zip(MODEL_COLUMNS, _MODEL_READER(row), strict=True))
    values["capabilities"] = _words(values["capabilities"])
    return Model(**values)


def _words(text: str | None) -> tuple[str, ...] | None:
    """A JSON list of words; None for anything else that another program may have put there."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    return tuple(map(str, found)) if isinstance(found, list) else None


def machine_of(row: Iterable[Any]) -> Machine:
    """The machine of a row of MACHINE_COLUMNS."""
    return Machine(**dict(zip(MACHINE_COLUMNS, _MACHINE_READER(row), strict=True)))


def shown(value: Any) -> Any:
    """A value of any column as text or number."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def upsert(table: str, columns: Iterable[str], *, key: str = "id", keep_known: bool = False) -> str:
    """SQL that inserts a row or brings it up to date; with `keep_known`, NULL never replaces a value."""
    names = tuple(columns)
    new = "coalesce(excluded.{0}, {0})" if keep_known else "excluded.{0}"
    sets = ", ".join(f"{name} = {new.format(name)}" for name in names if name != key)
    marks = ", ".join("?" * len(names))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) ON CONFLICT({key}) DO UPDATE SET {sets}"


SAVE_MACHINE = upsert("machines", ("id", "class", *MACHINE_COLUMNS[1:]), keep_known=True)
SAVE_MODEL = upsert("models", ("id", *MODEL_COLUMNS), keep_known=True)
SAVE_RUN = upsert("runs", RUN_COLUMNS)
_SAVE_CALL = upsert("calls", CALL_COLUMNS)
_SAVE_TEXTS = upsert("texts", ("call_id", "prompt_json", "answer"), key="call_id")
