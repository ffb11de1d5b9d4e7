"""When bytes left and when they came: the stamps of one exchange, whatever carried it."""

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import httpx

Chunk = tuple[int, bytes]  # nanoseconds of the client's clock, bytes of the body
TakeIn = Callable[[list[Chunk]], bool]


class Arrivals(Protocol):
    """The body of a response with its stamps; `response.extensions["arrivals"]` where the transport is ours.

    `sent_ns` is the moment the request was written; `connect_ns` what opening the connection took (None: it was open);
    `source` says what stamped the bytes: `socket` (as they arrived) or `reader` (when the coroutine got round to them).
    """

    source: str
    sent_ns: int | None
    connect_ns: int | None

    def more(self) -> Awaitable[None]:
        """Wait until something can be taken or the body has ended; raises what broke it off. One reader only."""
        ...

    def take(self) -> list[Chunk]:
        """Whatever has arrived since the last call; after `more`, empty means the end of the body."""
        ...

    async def pour(self, take_in: TakeIn) -> None:
        """Give `take_in` whatever arrives until it says that it has enough; nothing (`[]`) is the end of the body.

        Raises what broke it off, or what `take_in` raises. One reader only, instead of `more` and `take`.
        """
        while True:
            await self.more()
            if take_in(self.take()):
                return

    async def aclose(self) -> None:
        """Let go of the exchange; the connection is closed unless the body has ended."""
        ...

    def finish(self) -> None:
        """The answer is complete: what little may still follow is read in the background, for the connection's sake."""
        ...


class ReaderArrivals(Arrivals):
    """Stamps the body of any httpx transport when it is read."""

    source = "reader"

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._started_ns = clock()
        self._connecting_ns: int | None = None
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._taken: list[Chunk] = []
        self.sent_ns: int | None = self._started_ns
        self.connect_ns: int | None = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """httpcore reports its steps here (`request.extensions["trace"]`); other transports say nothing."""
        if event == "connection.connect_tcp.started":
            self._connecting_ns = self._clock()
        elif event.endswith(".send_request_body.complete"):
            self.sent_ns = self._clock()
        elif event.endswith(".send_request_headers.started") and self._connecting_ns is not None:
            self.connect_ns = self._clock() - self._connecting_ns
            self._connecting_ns = None

    def attach(self, response: httpx.Response) -> None:
        """Read this response from now on."""
        self._response = response
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        self._chunks = aiter(stream)

    async def more(self) -> None:
        assert self._chunks is not None
        async for data in self._chunks:
            self._taken = [(self._clock(), data)]
            return

    def take(self) -> list[Chunk]:
        taken, self._taken = self._taken, []
        return taken

    async def aclose(self) -> None:
        close_iterator = getattr(self._chunks, "aclose", None)
        if close_iterator is not None:
            await close_iterator()
        if self._response is not None:
            await self._response.aclose()

    def finish(self) -> None:
        """Nothing is read ahead here; `aclose` closes the connection."""


class InflatedArrivals(Arrivals):
    """A body that came compressed although we asked for none; its chunks keep the stamps of what they came from."""

    def __init__(self, arrivals: Arrivals, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise httpx.DecodingError(f"the body is compressed with {encoding}, which nobody asked for")
        self._arrivals = arrivals
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._plain: list[Chunk] = []
        self.source = arrivals.source
        self.connect_ns = arrivals.connect_ns

    @property
    def sent_ns(self) -> int | None:  # type: ignore[override]
        """The last byte of the request may leave after the answer began."""
        return self._arrivals.sent_ns

    async def more(self) -> None:
        while not self._plain:
            await self._arrivals.more()
            chunks = self._arrivals.take()
            if not chunks:
                return
            try:
                plain = [(stamp_ns, self._inflate.decompress(data)) for stamp_ns, data in chunks]
            except zlib.error as error:
                raise httpx.DecodingError(f"the compressed body is broken ({error})") from error
            self._plain = [chunk for chunk in plain if chunk[1]]

    def take(self) -> list[Chunk]:
        plain, self._plain = self._plain, []
        return plain

    async def aclose(self) -> None:
        await self._arrivals.aclose()

    def finish(self) -> None:
        self._arrivals.finish()
