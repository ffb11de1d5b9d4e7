"""Write chosen runs to a small database of their own."""

import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from llmlab.errors import UsageError
from llmlab.store import Store
from llmlab.store.connection import BUSY_TIMEOUT_S, open_writable, readable
from llmlab.store.fault import store_error
from llmlab.store.merge import Copied, attached, copy_rows

# What a server or a system says of a failure can name a computer, a user or a folder.
_PLACES = (
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"]+", re.IGNORECASE), "(address)"),
    (re.compile(r"\[[0-9a-f:]{2,}\](:\d+)?|\b(\d{1,3}\.){3}\d{1,3}(:\d+)?\b", re.IGNORECASE), "(address)"),
    (re.compile(r"\b[\w.-]+:\d{4,5}\b"), "(address)"),
    (re.compile(r"(?<![\w/\\])(~|[a-z]:)?([\\/][^\s\\/:'\"]+){2,}", re.IGNORECASE), "(path)"),
)


def export_runs(store: Store, run_ids: Sequence[str], output: Path, *, texts: bool = True) -> Copied:
    """Write the runs, with their machines, models and calls, to the new file `output`; `texts` too where there are any.

    The file is whole or not there, needs no -wal file beside it, and may be opened read-only anywhere. What errors say
    of addresses and paths is left out.
    """
    if output.exists():
        raise UsageError(f"{output} is there already", "Name a new file")
    store.flush()
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        copied = _write(store, run_ids, draft, texts)
        draft.replace(output)
    except OSError as error:
        raise store_error(output, error) from None
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                draft.with_name(draft.name + suffix).unlink()
    return copied


def _write(store: Store, run_ids: Sequence[str], draft: Path, texts: bool) -> Copied:
    with closing(open_writable(draft, BUSY_TIMEOUT_S)) as connection:
        with readable(store.path) as uri, attached(draft, uri, name=store.path) as target:
            target.execute("CREATE TEMP TABLE wanted (run_id TEXT PRIMARY KEY)")
            target.executemany("INSERT INTO wanted VALUES (?)", [(run_id,) for run_id in dict.fromkeys(run_ids)])
            copied = copy_rows(target, wanted=True, texts=texts)
            _leave_out_places(target)
        connection.execute("PRAGMA journal_mode = DELETE")
    return copied


def _leave_out_places(connection: sqlite3.Connection) -> None:
    connection.create_function("without_places", 1, without_places, deterministic=True)
    connection.execute("UPDATE main.calls SET error = without_places(error) WHERE error IS NOT NULL")


def without_places(text: str) -> str:
    """`text` with addresses and absolute paths replaced: `no server at (address)`."""
    for pattern, word in _PLACES:
        text = pattern.sub(word, text)
    return text
