"""A reply: what goes back over ASGI, whole or line by line."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[str, str]]

JSON = "application/json; charset=utf-8"


class Reply:
    """The status line of a stream is held back until its first line: until then a refusal has a status of its own."""

    def __init__(self, send: Send, headers: Headers = ()) -> None:
        self.send = send
        self.headers = headers
        self.streaming = False

    async def head(self, status: int, headers: Headers) -> None:
        pairs = [(name.encode(), value.encode()) for name, value in (*self.headers, *headers)]
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})

    async def whole(self, status: int, data: bytes = b"", kind: str | None = None, headers: Headers = ()) -> None:
        types = [("content-type", kind)] if kind else []
        await self.head(status, [*types, ("content-length", str(len(data))), *headers])
        await self.send({"type": "http.response.body", "body": data})

    async def json(self, value: Any, status: int = 200, kind: str = JSON) -> None:
        await self.whole(status, encoded(value), kind)

    async def text(self, status: int, text: str, headers: Headers = ()) -> None:
        await self.whole(status, text.encode(), "text/plain", headers)

    async def stream(self, data: bytes, kind: str) -> None:
        """Send a part of a stream, after its head where it is the first."""
        if not self.streaming:
            await self.head(200, [("content-type", kind)])
            self.streaming = True
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self.send({"type": "http.response.body", "body": b""})


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
