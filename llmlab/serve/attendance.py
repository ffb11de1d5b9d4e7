"""Attendance: work that is done only as long as its client is there and the server is open."""

import asyncio
from collections.abc import Coroutine
from enum import Enum
from typing import Any

from llmlab.serve.asgi import Receive


class End(Enum):
    """How work for a client ended."""

    DONE = "done"
    LEFT = "the client left"
    DISMISSED = "the server is stopping"


class Attendance:
    """Everybody who is being answered; one for each event loop."""

    def __init__(self) -> None:
        self._workers: set[asyncio.Future[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._workers)

    async def run(self, receive: Receive, work: Coroutine[Any, Any, None]) -> End:
        """Do `work`; the moment its client leaves, cancel it and wait until it has cleaned up.

        The request's body must have been read. Raises what `work` raises.
        """
        if self._closed:
            work.close()
            return End.DISMISSED
        worker = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(_left(receive))
        self._workers.add(worker)
        try:
            await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not worker.done():
                await _cancel(worker)
                return End.LEFT
            if worker.cancelled():
                return End.DISMISSED
            worker.result()
            return End.DONE
        except asyncio.CancelledError:
            await _cancel(worker)
            raise
        finally:
            self._workers.discard(worker)
            watcher.cancel()

    def dismiss(self) -> None:
        """End the work for everybody, now and from now on."""
        self._closed = True
        for worker in self._workers:
            worker.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Future[None]") -> None:
    """Cancel `task` and wait for its end, whatever it says."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
