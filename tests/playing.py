"""A played server in a thread of its own, for commands that run in the test's thread or in a process."""

import asyncio
import threading
from types import TracebackType
from typing import Any

from tests.played import PlayedServer, Request, Response
from tests.serving import ollama_pages


class Playing:
    """Plays `responses` while its context is open, behind an Ollama's `pages` unless others are given."""

    def __init__(self, *responses: Response, pages: list[Response] | None = None) -> None:
        self._server = PlayedServer([*(ollama_pages() if pages is None else pages), *responses])
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Playing":
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self._server:
            self._ready.set()
            await self._over.wait()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def requests(self) -> list[Request]:
        return list(self._server.requests)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The bodies of the chats so far."""
        return [request.json for request in self.requests if request.path == "/api/chat"]

    def drop_idle(self) -> None:
        """Close every connection, as a server that restarts does."""
        self._loop.call_soon_threadsafe(self._server.drop_idle)
