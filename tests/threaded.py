"""A served llmlab in a thread with a loop of its own, for clients that are not asynchronous."""

import asyncio
import threading
from typing import Any

from tests.serving import serving


class Threaded:
    """Runs while its context is open; `url` is where it listens."""

    def __init__(self, upstream: str, **settings: Any) -> None:
        self._upstream = upstream
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.url = ""

    def __enter__(self) -> "Threaded":
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self._upstream, **self._settings) as service:
            self.url = service.url
            self._ready.set()
            await self._over.wait()
