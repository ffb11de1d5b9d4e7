"""One request and its response on a connection: bytes are stamped the moment the socket delivers them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import httptools
import httpx

from llmlab.client.arrivals import Chunk, TakeIn
from llmlab.client.dial import cause
from llmlab.client.pour import Pour

if TYPE_CHECKING:
    from llmlab.client.connection import Connection

LARGEST_HEAD = 256 * 1024
HIGH_WATER = 1024 * 1024
LINGER_S = 1.0


class Exchange(httpx.AsyncByteStream):
    """The response's body with its stamps (an `Arrivals`), fed by httptools as the connection receives bytes."""

    source = "socket"

    def __init__(self, connection: "Connection", clock: Callable[[], int], silence_s: float | None, head: bool) -> None:
        self._connection = connection
        self._clock = clock
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._is_head = head
        self._parser = httptools.HttpResponseParser(self)
        self.parse: Callable[[bytes], None] = self._parser.feed_data
        self._waiter: asyncio.Future[None] | None = None
        self._pour: Pour | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.chunks: list[Chunk] = []
        self._waiting_size = 0
        self.paused = False
        self._finishing = False
        self._head_size = 0
        self._framed = False
        self.stamp_ns = clock()
        self.sent_ns: int | None = None
        self.connect_ns: int | None = None
        self.status = 0
        self.has_head = False  # whether the reader has status and headers, and waits for the body
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.error: httpx.TransportError | None = None
        if silence_s is not None:
            self._timer = self._loop.call_later(silence_s, self._check_silence)

    # What the connection reports.

    def still_head(self, size: int) -> None:
        """`size` bytes came, and the head is not complete yet."""
        self._head_size += size
        if self._head_size > LARGEST_HEAD:
            self.fail(httpx.RemoteProtocolError("the head of the response is too long"))

    @property
    def heard(self) -> bool:
        """Whether any byte of a response came."""
        return self._head_size > 0 or self.status > 0

    def sent(self) -> None:
        """The last byte of the request has been handed to the operating system."""
        if self.sent_ns is None:
            self.sent_ns = self._clock()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone. A body without a length ends this way; anything else is cut."""
        if self.complete or self.error:
            return
        if error is None and self.status and not self._framed:
            self._complete()
            self.wake()
        elif error is None:
            what = "the body was cut" if self.status else ""
            self.fail(httpx.RemoteProtocolError(what))
        else:
            self.fail(httpx.ReadError(cause(error)))

    def fail(self, error: httpx.TransportError) -> None:
        """Nothing more can come: the reader gets `error` after what has arrived."""
        if self.complete or self.error:
            return
        self.error = error
        self._stop_timer()
        self._connection.abort()
        self.wake()

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self.complete:
            # More than the one response that was asked for.
            self._connection.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))
        if not self._framed and name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
        else:
            # An interim response (100, 103) comes before the real one.
            self.headers, self._framed = [], False

    def on_body(self, data: bytes) -> None:
        if self.complete:
            return
        self.chunks.append((self.stamp_ns, data))
        self._waiting_size += len(data)
        if self._waiting_size > HIGH_WATER and not self.paused:
            self.paused = True
            self._connection.pause_reading()

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self._complete()

    def _complete(self) -> None:
        self.complete = True
        self._stop_timer()
        self._connection.release(self._framed and self._parser.should_keep_alive() and not self._is_head)

    # What the reader asks for.

    async def head(self) -> None:
        """Wait for status and headers."""
        while not self.status:
            await self.more()
        self.has_head = True
        if self._is_head:
            self.on_message_complete()

    def more(self) -> asyncio.Future[None]:
        """A future, not a coroutine: one is awaited for every token."""
        waiter = self._loop.create_future()
        if self.chunks or self.complete:
            waiter.set_result(None)
        elif self.error is not None:
            waiter.set_exception(self.error)
        else:
            self._waiter = waiter
        return waiter

    def pour(self, take_in: TakeIn) -> asyncio.Future[None]:
        """As `Arrivals.pour`, from where the bytes arrive."""
        self._pour = pour = Pour(self, take_in)
        if self.chunks or self.complete or self.error is not None:
            pour.wake()
        return pour.over

    def take(self) -> list[Chunk]:
        chunks, self.chunks = self.chunks, []
        self._waiting_size = 0
        if self.paused:
            self.paused = False
            self._connection.resume_reading()
        return chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await self.more()
            chunks = self.take()
            if not chunks:
                return
            for _, data in chunks:
                yield data

    async def aclose(self) -> None:
        if not self._finishing:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once unless the response has been received completely."""
        if not self.complete:
            self.fail(httpx.ReadError("closed"))

    def finish(self) -> None:
        """The reader has all it wants; the end of the body usually follows at once and saves the connection."""
        if not self.complete and not self.error and not self.paused:
            self._finishing = True
            self._stop_timer()
            self._timer = self._loop.call_later(LINGER_S, self.abort)

    def wake(self) -> None:
        """Let the reader go on: something came, or nothing more can."""
        if self._pour is not None:
            self._pour.wake()
            return
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if self.chunks or self.error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(self.error)

    def _check_silence(self) -> None:
        """One timer watches the whole exchange; arriving bytes only leave their stamp."""
        assert self._silence_s is not None
        left_s = self._silence_s - (self._clock() - self.stamp_ns) / 1e9
        if left_s <= 0 and not self.paused:
            self.fail(httpx.ReadTimeout(f"no data for {self._silence_s:g} s"))
        else:
            self._timer = self._loop.call_later(left_s if left_s > 0 else self._silence_s, self._check_silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
