"""One client connection: uvicorn's, with patience that ends."""

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PatientFlow(FlowControl):
    """Waits for a client that reads slowly, and gives up on one that does not read at all."""

    def __init__(self, transport: asyncio.Transport, stalled_s: float) -> None:
        super().__init__(transport)
        self._stalled_s = stalled_s

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(self._stalled_s):
                await super().drain()
        except TimeoutError:
            self._transport.abort()
            await super().drain()


class ClientConnection(HttpToolsProtocol):
    """Closes on a client that connects and says nothing, sends its request's head too slowly, or stops reading."""

    head_s: float
    stalled_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = PatientFlow(transport, self.stalled_s)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self.transport.abort)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def connections(head_s: float, stalled_s: float) -> type[ClientConnection]:
    """Connections with this much patience, in seconds; uvicorn takes a class and makes one of it for each client."""
    return type("PatientConnection", (ClientConnection,), {"head_s": head_s, "stalled_s": stalled_s})
