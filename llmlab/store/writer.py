"""The one writer: a thread that takes queued rows in batches, one transaction a batch."""

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from llmlab.errors import StoreError
from llmlab.store.fault import MovedError, count, store_error

Write = Callable[[sqlite3.Connection], None]

# A transaction of this many rows takes tens of milliseconds: other programs get their turn in between.
BATCH = 500
# What says that the row itself is at fault; anything else is the file's or the disk's.
_REFUSALS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    AttributeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Somebody who waits until `target` rows are durable, or until attempt number `attempt` or a later one fails."""

    target: int
    attempt: int
    future: "Future[None]"


class Writer:
    """Writes rows in the order they were queued, off the caller's thread.

    A batch that fails (disk full, locked, file gone) stays queued: everybody who waits is told, and the next `put` or
    `saved` tries again. A row that the schema refuses can never be written: it is left out and told once.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """`connection` (made with check_same_thread=False, isolation_level=None) belongs to the writer from now on."""
        self._path = path
        self._connection = connection
        self._file = _identity(path)
        self._queue: deque[Write] = deque()
        self._waiters: list[_Waiter] = []
        self._refused: list[str] = []
        self._wake = threading.Condition()
        self._queued = 0
        self._durable = 0
        self._attempt = 0
        self._writing = False
        self._due = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="llmlab-store", daemon=True)
        self._thread.start()

    def put(self, write: Write) -> None:
        """Queue one row. Never waits for the disk."""
        with self._wake:
            self._queue.append(write)
            self._queued += 1
            self._due = True
            self._wake.notify()

    def saved(self) -> "Future[None]":
        """Done when every row queued so far is durable; fails with a StoreError that counts the rows that are not."""
        future: Future[None] = Future()
        with self._wake:
            if self._durable >= self._queued and not self._refused:
                future.set_result(None)
                return future
            # Where an attempt is under way its failure is answer enough: the next may wait as long for a lock again.
            self._waiters.append(_Waiter(self._queued, self._attempt + (0 if self._writing else 1), future))
            self._due = True
            self._wake.notify()
        return future

    @property
    def unsaved(self) -> int:
        """How many rows wait to be written."""
        return len(self._queue)

    def stop(self) -> None:
        """End the thread and close the connection."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._due or self._stopping)
                if not self._due:
                    return
                batch = list(islice(self._queue, BATCH))
                self._attempt += 1
                self._writing = True
                self._due = len(self._queue) > len(batch)
            fault = self._write(batch)
            self._settle(len(batch), fault)

    def _write(self, batch: list[Write]) -> Exception | None:
        """Write `batch` in one transaction; the reason where it failed and nothing of it is in the file."""
        refused: list[str] = []
        try:
            if _identity(self._path) != self._file:
                raise MovedError
            self._connection.execute("BEGIN IMMEDIATE")
            for write in batch:
                try:
                    write(self._connection)
                except _REFUSALS as error:  # one bad row must not hold up all that come after it
                    refused.append(str(error))
            self._connection.execute("COMMIT")
        except Exception as error:  # whatever it was: a writer that dies would leave everybody waiting
            self._roll_back()
            return error
        with self._wake:
            self._refused += refused
        return None

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # some failures have taken the transaction back already
            self._connection.execute("ROLLBACK")

    def _settle(self, size: int, fault: Exception | None) -> None:
        """Count the batch and wake whom it concerns."""
        with self._wake:
            self._writing = False
            if fault is None:
                for _ in range(size):
                    self._queue.popleft()
                self._durable += size
            ready: list[_Waiter] = []
            waiting: list[_Waiter] = []
            for waiter in self._waiters:
                done = waiter.target <= self._durable if fault is None else waiter.attempt <= self._attempt
                (ready if done else waiting).append(waiter)
            self._waiters = waiting
            if fault is not None:
                self._due = bool(waiting)
            unsaved = len(self._queue)
            refused: list[str] = []
            if ready and fault is None:
                refused, self._refused = self._refused, refused
        for waiter in ready:
            error = store_error(self._path, fault, unsaved=unsaved) if fault else _refusal(self._path, refused)
            _finish(waiter.future, error)


def _refusal(path: Path, reasons: list[str]) -> StoreError | None:
    if not reasons:
        return None
    return StoreError(
        f"the database {path} refused {count(len(reasons), 'row')}: {reasons[0]}", "All other rows are saved"
    )


def _finish(future: "Future[None]", error: StoreError | None) -> None:
    with suppress(InvalidStateError):  # who waited was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at `path`; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - runs once a batch; Path.stat is twice as slow
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
