"""The desk: hands the loaded model to requests, loads it anew for another window, and lets a bounded queue wait."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from llmlab.engine.runner import Runner

FOREVER_S = float("inf")
KEEP_ALIVE_S = 300.0

Load = Callable[[int], Awaitable[Runner]]


class Busy(Exception):
    """The model must be loaded first and the queue for that is full."""


@dataclass(eq=False)
class Waiting:
    n_ctx: int
    granted: "asyncio.Future[Runner]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Desk:
    """At most one runner, lent to many requests at once.

    Requests that fit what is loaded get it at once (and then wait for a slot, however many they are). The others form
    a queue of at most `max_queue` besides the one being served, and are served in turn.
    """

    def __init__(self, load: Load, max_queue: int) -> None:
        self.load = load
        self.max_queue = max_queue
        self.runner: Runner | None = None
        self.users = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.queue: deque[Waiting] = deque()
        self.clerk: asyncio.Task[None] | None = None
        self.keep_alive_s = KEEP_ALIVE_S
        self.expires_at_s = 0.0
        self.expiry: asyncio.TimerHandle | None = None
        self.leaving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lend(self, n_ctx: int, keep_alive_s: float | None) -> AsyncIterator[Runner]:
        """The runner with a window of `n_ctx`, loaded first where it is not; Busy, or EngineError from loading."""
        runner = await self.get(n_ctx)
        self.keep_alive_s = KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s
        self.expires_at_s = time.time() + self.keep_alive_s
        try:
            yield runner
        finally:
            self.give_back()

    async def get(self, n_ctx: int) -> Runner:
        if self.clerk is None and self.fits(n_ctx):
            assert self.runner
            self.take()
            return self.runner
        waiting = Waiting(n_ctx)
        if self.clerk is None:
            self.clerk = asyncio.create_task(self.serve_queue(waiting))
        elif len(self.queue) < self.max_queue:
            self.queue.append(waiting)
        else:
            raise Busy
        try:
            return await waiting.granted
        except asyncio.CancelledError:
            self.withdraw(waiting)
            raise

    def withdraw(self, waiting: Waiting) -> None:
        """The client left: free its place, or what it was given a moment ago."""
        if waiting in self.queue:
            self.queue.remove(waiting)
        elif waiting.granted.done() and not waiting.granted.cancelled() and not waiting.granted.exception():
            self.give_back()

    def fits(self, n_ctx: int) -> bool:
        return self.runner is not None and self.runner.alive and self.runner.plan.n_ctx == n_ctx

    async def serve_queue(self, first: Waiting) -> None:
        try:
            await self.serve(first)
            while self.queue:
                await self.serve(self.queue.popleft())
        finally:
            self.clerk = None

    async def serve(self, waiting: Waiting) -> None:
        try:
            if not self.fits(waiting.n_ctx):
                await self.idle.wait()
                if waiting.granted.cancelled():
                    return
                await self.unload()
                self.runner = await self.load(waiting.n_ctx)
        except Exception as error:
            if not waiting.granted.done():
                waiting.granted.set_exception(error)
            return
        if waiting.granted.done():
            self.rest()
        else:
            assert self.runner
            self.take()
            waiting.granted.set_result(self.runner)

    def take(self) -> None:
        self.users += 1
        self.idle.clear()
        if self.expiry:
            self.expiry.cancel()
            self.expiry = None

    def give_back(self) -> None:
        self.users -= 1
        if self.users == 0:
            self.idle.set()
            self.rest()

    def rest(self) -> None:
        """Nobody uses the model: unload it when its time is over."""
        self.expires_at_s = time.time() + self.keep_alive_s
        if self.keep_alive_s <= 0:
            self.expire()
        elif self.keep_alive_s != FOREVER_S:
            self.expiry = asyncio.get_running_loop().call_later(self.keep_alive_s, self.expire)

    async def dismiss(self) -> None:
        """Unload the model, as soon as nobody uses it."""
        self.keep_alive_s = 0.0
        if self.users == 0:
            await self.unload()

    def expire(self) -> None:
        if self.users == 0:
            task = asyncio.create_task(self.unload())
            self.leaving.add(task)
            task.add_done_callback(self.leaving.discard)

    async def unload(self) -> None:
        runner, self.runner = self.runner, None
        if self.expiry:
            self.expiry.cancel()
            self.expiry = None
        if runner:
            await runner.stop()

    async def close(self) -> None:
        """End the worker, whoever uses it."""
        if self.clerk:
            self.clerk.cancel()
            await asyncio.gather(self.clerk, return_exceptions=True)
        await self.unload()
        await asyncio.gather(*self.leaving)
