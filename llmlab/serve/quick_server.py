"""uvicorn's server, with signals left to us and an end that does not wait in steps."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

TICK_S = 1.0
LOOK_S = 0.01


class QuickServer(uvicorn.Server):
    """Serves until `leave`; then whoever is being answered has `patience_s` until he is cut off.

    uvicorn's own handlers would raise a signal again before the last rows are saved.
    """

    def __init__(self, config: uvicorn.Config, patience_s: float) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()
        self._patience_s = patience_s

    def leave(self) -> None:
        """Take no more connections, and end."""
        self.should_exit = True
        self._leaving.set()

    def hurry(self) -> None:
        """Cut off whoever is still being answered."""
        self.force_exit = True
        self.leave()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        seconds = 0
        while not await self.on_tick(seconds * 10):
            seconds += 1
            try:
                async with asyncio.timeout(TICK_S):
                    await self._leaving.wait()
            except TimeoutError:
                continue

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        state, loop = self.server_state, asyncio.get_running_loop()
        for connection in list(state.connections):
            connection.shutdown()
        deadline_s = loop.time() + self._patience_s
        await asyncio.sleep(0)
        while (state.tasks or state.connections) and loop.time() < deadline_s and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # uvicorn keeps plain sets: nothing tells when they are empty
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=self._patience_s)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
