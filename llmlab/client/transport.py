"""An httpx transport for direct connections whose responses know when each byte arrived."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from ssl import SSLContext
from typing import TypeAlias

import httpx

from llmlab.client.connection import Connection, write_request
from llmlab.client.dial import cause, dial
from llmlab.client.exchange import Exchange

Origin: TypeAlias = tuple[str, str, int]

CONNECT_S = 5.0
PORTS = {"http": 80, "https": 443}


class StampingTransport(httpx.AsyncBaseTransport):
    """Direct http(s) on asyncio and httptools; `response.extensions["arrivals"]` is the body with its stamps.

    `clock` gives nanoseconds. Limits come from `request.extensions["timeout"]` as httpx knows them: `connect` and
    `read` (silence) in seconds. Connections are kept while the server keeps them; their number has no limit, so that
    nothing ever queues unseen. One event loop per transport.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._idle: dict[Origin, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._ssl: SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        limits = request.extensions.get("timeout", {})
        message = write_request(request, body)
        origin = origin_of(request.url)
        connection, connect_ns = self._take(origin), None
        while True:
            if connection is None:
                connection, connect_ns = await self._dial(origin, limits.get("connect", CONNECT_S))
            exchange = connection.start(message, limits.get("read"), request.method == "HEAD")
            exchange.connect_ns = connect_ns
            request.extensions["arrivals"] = exchange
            try:
                await exchange.head()
            except (httpx.ReadError, httpx.RemoteProtocolError):
                # The server closed an idle connection in the moment we used it: nobody saw the request.
                if connect_ns is not None or exchange.heard:
                    raise
                connection = None
                continue
            except BaseException:
                exchange.abort()
                raise
            return respond(exchange)

    async def connect(self, url: httpx.URL, n: int, timeout_s: float = CONNECT_S) -> None:
        """Have `n` idle connections to the server of `url`."""
        origin = origin_of(url)
        missing = n - len(self._idle.get(origin, ()))
        opened = await asyncio.gather(*(self._dial(origin, timeout_s) for _ in range(missing)))
        for connection, _ in opened:
            self._put(origin, connection)

    async def aclose(self) -> None:
        for connection in list(self._all):
            connection.close()
        # The event loop closes the sockets in its next round.
        await asyncio.sleep(0)

    def _take(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    def _put(self, origin: Origin, connection: Connection) -> None:
        self._idle.setdefault(origin, []).append(connection)

    def _gone(self, origin: Origin, connection: Connection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(origin, [])
        if connection in idle:
            idle.remove(connection)

    async def _dial(self, origin: Origin, timeout_s: float | None) -> tuple[Connection, int]:
        """A new connection and what opening it took, TLS included, in nanoseconds."""
        scheme, host, port = origin
        started_ns = self._clock()
        loop, context = asyncio.get_running_loop(), self._tls() if scheme == "https" else None

        def make() -> Connection:
            return Connection(self._clock, partial(self._put, origin), partial(self._gone, origin))

        async def connect(address: str) -> Connection:
            _, made = await loop.create_connection(
                make, address, port, ssl=context, server_hostname=host if context else None
            )
            return made

        try:
            async with asyncio.timeout(timeout_s):
                connection = await dial(host, port, connect, Connection.abort)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("") from error
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(cause(error)) from error
        self._all.add(connection)
        return connection, self._clock() - started_ns

    def _tls(self) -> SSLContext:
        if self._ssl is None:
            self._ssl = httpx.create_ssl_context()
        return self._ssl


def respond(exchange: Exchange) -> httpx.Response:
    return httpx.Response(
        exchange.status,
        headers=exchange.headers,
        stream=exchange,
        extensions={"http_version": b"HTTP/1.1", "arrivals": exchange},
    )


def origin_of(url: httpx.URL) -> Origin:
    if url.scheme not in PORTS or not url.host:
        raise httpx.UnsupportedProtocol(f"not an http address: {url.scheme}://{url.host}")
    return url.scheme, url.host, url.port or PORTS[url.scheme]
