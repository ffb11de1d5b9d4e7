"""The floor: the least that a correct reader in Python can do with a stream.

asyncio, httptools and (where there is one) uvloop; it stamps the bytes, splits them on newlines and parses each line
with `json.loads`. Nothing else: no timeouts, no errors, no reuse of connections, no record.
"""

import asyncio
import json
import time
from array import array
from typing import Any

import httptools


class Reader(asyncio.Protocol):
    """Reads one response; `stamps` holds the nanoseconds at which each line with text arrived."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._stamp_ns = 0
        self.sent_ns = 0
        self.stamps = array("q")
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)
        self.sent_ns = time.perf_counter_ns()

    def data_received(self, data: bytes) -> None:
        self._stamp_ns = time.perf_counter_ns()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            text = line.removeprefix(b"data:").strip()
            if text and text != b"[DONE]":
                self._line(json.loads(text))

    def _line(self, value: dict[str, Any]) -> None:
        message = value.get("message") or (value.get("choices") or [{}])[0].get("delta") or {}
        if message.get("content"):
            self.stamps.append(self._stamp_ns)

    def on_message_complete(self) -> None:
        self._transport.close()
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def read_stream(host: str, port: int, path: str, body: bytes) -> Reader:
    """Send one request and read its stream to the end."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    _, reader = await asyncio.get_running_loop().create_connection(lambda: Reader(request), host, port)
    await reader.done
    return reader
