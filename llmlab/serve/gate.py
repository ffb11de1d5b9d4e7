"""The gate: how many calls run at once, how many wait their turn, and who is sent away."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LONGEST_WAIT_S = 60.0


class Full(Exception):
    """All places are taken, in front of the model and in the queue."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("too many calls at once")
        self.retry_after_s = retry_after_s


class Gate:
    """Lets `max_parallel` calls through at once, in the order they came; `max_queue` more may wait."""

    def __init__(self, max_parallel: int, max_queue: int) -> None:
        self.max_parallel = max_parallel
        self.max_queue = max_queue
        self.running = 0
        self.waiting = 0
        self._free = asyncio.Semaphore(max_parallel)
        self._usual_s = 1.0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one call; leaving the context frees it. Raises Full at once where the queue is full."""
        if self._free.locked():
            if self.waiting >= self.max_queue:
                raise Full(min(LONGEST_WAIT_S, self._usual_s * (self.waiting + 1) / self.max_parallel))
            self.waiting += 1
            try:
                await self._free.acquire()
            finally:
                self.waiting -= 1
        else:
            await self._free.acquire()
        self.running += 1
        started_s = time.monotonic()
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()
            # A moving mean is enough to tell a client when it is worth trying again.
            self._usual_s += 0.2 * (time.monotonic() - started_s - self._usual_s)
