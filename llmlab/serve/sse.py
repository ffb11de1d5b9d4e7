"""Server-sent events: their frames, and a stream of them that is answered only once something is to be said."""

import asyncio
import json
from typing import Any

from llmlab.serve.asgi import Headers, Send

HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
COMMENT = b": waiting\n\n"
# Some readers take these for the end of a line, as Python's splitlines does.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def frame(data: dict[str, Any], event: str | None = None) -> bytes:
    """One event with `data` as one line of JSON, so that every character of it survives."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if not text.isascii():
        text = text.translate(_LINE_ENDS)
    return (f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n").encode()


class EventStream:
    """Events to one client. Nothing is sent before the first event or the first `idle_s` of silence.

    Until then `started` is False and the answer can still become an error with its own status. As a context it keeps
    an idle line alive with comments.
    """

    def __init__(self, send: Send, idle_s: float = 10.0, headers: Headers | None = None) -> None:
        self._send = send
        self._idle_s = idle_s
        self._headers = [*HEADERS, *(headers or ())]
        self._busy = False
        self._written = False
        self._pulse: asyncio.Task[None] | None = None
        self.started = False

    async def __aenter__(self) -> "EventStream":
        self._pulse = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.wait((self._pulse,))

    async def event(self, data: dict[str, Any], event: str | None = None) -> None:
        """Send one event; waits while the client does not read."""
        await self._write(frame(data, event))

    async def end(self) -> None:
        """End the stream properly."""
        await self._send({"type": "http.response.body", "body": b""})

    async def _write(self, data: bytes) -> None:
        self._busy = self._written = True
        try:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._busy = False

    async def _keep_alive(self) -> None:
        while True:
            self._written = False
            await asyncio.sleep(self._idle_s)
            if not self._written and not self._busy:
                await self._write(COMMENT)
