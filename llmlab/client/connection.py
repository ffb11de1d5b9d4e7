"""One connection to a server, used for one exchange after the other."""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools
import httpx

from llmlab.client.exchange import Exchange


class Connection(asyncio.Protocol):
    """Receives for the exchange in progress; tells its pool when it is idle and when it is gone."""

    def __init__(
        self,
        clock: Callable[[], int],
        on_idle: "Callable[[Connection], None]",
        on_gone: "Callable[[Connection], None]",
    ) -> None:
        self._clock = clock
        self._on_idle = on_idle
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._sending = False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # With no room in the buffer, resume_writing means that the last byte has gone to the operating system.
        self._transport.set_write_buffer_limits(high=0)

    def start(self, request: bytes, silence_s: float | None, head: bool) -> Exchange:
        """Write a request and return its exchange."""
        assert self._transport is not None
        self._exchange = exchange = Exchange(self, self._clock, silence_s, head)
        self._sending = True
        self._transport.write(request)
        if self._transport.get_write_buffer_size() == 0:
            self.resume_writing()
        return exchange

    def release(self, reusable: bool) -> None:
        """The response is complete."""
        self._exchange = None
        if reusable and not self._sending and not self.closed:
            self._on_idle(self)
        else:
            self.abort()

    def close(self) -> None:
        """Close at once, also under an exchange in progress, whose reader is told."""
        if self._exchange is not None:
            self._exchange.fail(httpx.ReadError("closed"))
        self.abort()

    def abort(self) -> None:
        """Close at once; whoever reads an exchange has been told or is the one who asks."""
        self.closed = True
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # Nothing was asked: whatever this is, the next answer must not begin with it.
            self.abort()
            return
        # The clock is read before anything else is done with the bytes.
        exchange.stamp_ns = self._clock()
        try:
            exchange.parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            exchange.fail(httpx.RemoteProtocolError(f"not HTTP: {error}"))
        if not exchange.status:
            exchange.still_head(len(data))
        if exchange.chunks or exchange.complete or not exchange.has_head:
            exchange.wake()

    def resume_writing(self) -> None:
        if self._sending:
            self._sending = False
            if self._exchange is not None:
                self._exchange.sent()

    def eof_received(self) -> None:
        self.closed = True

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost(error)
        self._on_gone(self)


def write_request(request: httpx.Request, body: bytes) -> bytes:
    """The bytes of a request with a body of known length."""
    target = request.url.raw_path
    lines = [request.method.encode() + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw if name.lower() != b"transfer-encoding"]
    if "content-length" not in request.headers and (body or request.method not in ("GET", "HEAD")):
        lines.append(b"Content-Length: " + str(len(body)).encode())
    head = b"\r\n".join(lines)
    if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines):
        raise httpx.LocalProtocolError("a line break in the request's head")
    return head + b"\r\n\r\n" + body
