"""SQLite's and the file system's failures as a StoreError: what happened, where, and what to do next."""

import sqlite3
from pathlib import Path

from llmlab.errors import StoreError

# By the start of SQLite's error name, the more exact ones first.
_KNOWN = (
    ("SQLITE_BUSY", "is locked by another program", "Close what holds it (a database browser?) and try again"),
    ("SQLITE_LOCKED", "is locked by another program", "Close what holds it (a database browser?) and try again"),
    ("SQLITE_FULL", "cannot grow: the disk is full", "Free some space and try again"),
    (
        "SQLITE_READONLY",
        "cannot be written",
        "Allow writing to the file and its folder, or choose another file with --db or LLMLAB_DB",
    ),
    (
        "SQLITE_CANTOPEN",
        "cannot be opened",
        "See that its folder exists and may be written, or choose another file with --db or LLMLAB_DB",
    ),
    ("SQLITE_NOTADB", "is not a SQLite database", "Choose another file with --db or LLMLAB_DB"),
    ("SQLITE_CORRUPT", "is damaged", "Keep a copy; the sqlite3 program's .recover command can save most rows"),
    ("SQLITE_IOERR", "cannot be read or written: the disk reports an error", "See that the disk is well and not full"),
)


class MovedError(Exception):
    """The file was moved, removed or replaced while it was open: it would take rows and forget them."""


def store_error(path: Path, error: Exception, *, unsaved: int = 0) -> StoreError:
    """`error`, met while working on the database at `path`, for a person; `unsaved` rows wait to be written."""
    what, hint = _words(error)
    if unsaved:
        what = f"{what}; {count(unsaved, 'row')} not saved"
    return StoreError(f"the database {path} {what}", hint)


def count(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _words(error: Exception) -> tuple[str, str]:
    name = getattr(error, "sqlite_errorname", None) or ""
    for start, what, hint in _KNOWN:
        if name.startswith(start):
            return what, hint
    if isinstance(error, MovedError):
        return "was moved or removed while in use", "Put it back and try again"
    if isinstance(error, OSError):
        return f"cannot be used: {error.strerror or error}", "Choose another file with --db or LLMLAB_DB"
    if isinstance(error, sqlite3.Error):
        return f"gives an error: {error}", "Keep a copy of the file and choose another with --db or LLMLAB_DB"
    return f"gives an error: {type(error).__name__}: {error}", "Choose another file with --db or LLMLAB_DB"
