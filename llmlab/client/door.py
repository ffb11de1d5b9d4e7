"""The way to one server: addresses, headers and secrets, and the transport that carries a request."""

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import httpx

from llmlab import __version__
from llmlab.client.arrivals import Arrivals, InflatedArrivals, ReaderArrivals
from llmlab.client.deltas import whole_characters
from llmlab.client.faults import CONNECT_S, Faults
from llmlab.client.transport import StampingTransport
from llmlab.errors import ServerError, UsageError
from llmlab.settings import is_loopback

if TYPE_CHECKING:
    from llmlab.settings import Server

LARGEST_BODY = 64 * 1024 * 1024


class Door:
    """Sends requests to one server and hands out responses whose bodies are stamped.

    A server behind a proxy is asked through httpx's own transport, where bytes are stamped when they are read.
    """

    def __init__(
        self, server: "Server", transport: httpx.AsyncBaseTransport | None, clock: Callable[[], int], timeout_s: float
    ) -> None:
        self._base = server.url.rstrip("/")
        self._headers = headers_for(server)
        self._clock = clock
        self._timeout_s = timeout_s
        self._transport = transport or transport_for(server, clock)
        self._urls: dict[str, httpx.URL] = {}
        self.faults = Faults(server)
        self.loopback = is_loopback(self.url("/").host)

    def url(self, path: str) -> httpx.URL:
        """The address of `path` on the server; UsageError where there can be none."""
        known = self._urls.get(path)
        if known is None:
            try:
                known = self._urls[path] = httpx.URL(self._base + path)
            except httpx.InvalidURL as error:
                raise UsageError(f"{self.faults.shown} is not an address: {error}") from error
        return known

    def request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
    ) -> httpx.Request:
        """A request for `path`; `headers` come on top of ours, which carry the secrets."""
        silence_s = self._timeout_s if silence_s is None else silence_s
        limit_s = silence_s if math.isfinite(silence_s) else None
        limits = {"connect": CONNECT_S, "read": limit_s, "write": limit_s, "pool": None}
        return httpx.Request(
            method,
            self.url(path),
            headers={**(headers or {}), **self._headers},
            content=content,
            extensions={"timeout": limits},
        )

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The response as soon as its head is there; httpx's errors where none comes. Redirects are not followed."""
        if isinstance(self._transport, StampingTransport):
            response = await self._transport.handle_async_request(request)
        else:
            reader = ReaderArrivals(self._clock)
            request.extensions |= {"trace": reader.trace, "arrivals": reader}
            response = await self._transport.handle_async_request(request)
            reader.attach(response)
            response.extensions["arrivals"] = reader
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            arrivals = arrivals_of(response)
            try:
                response.extensions["arrivals"] = InflatedArrivals(arrivals, encoding)
            except httpx.DecodingError:
                await arrivals.aclose()
                raise
        return response

    async def read(self, response: httpx.Response) -> bytes:
        """The rest of a body, up to 64 MiB; what came before a cut where it is cut."""
        arrivals, parts, size = arrivals_of(response), [], 0
        try:
            while size < LARGEST_BODY:
                await arrivals.more()
                chunks = arrivals.take()
                if not chunks:
                    break
                parts += [data for _, data in chunks]
                size += sum(len(data) for _, data in chunks)
        except (httpx.NetworkError, httpx.ProtocolError):
            pass
        finally:
            await arrivals.aclose()
        return b"".join(parts)

    async def connect(self, n: int) -> None:
        """Open connections until `n` idle ones are there; nothing to do for other transports than ours."""
        if isinstance(self._transport, StampingTransport):
            await self._transport.connect(self.url("/"), n, CONNECT_S)

    async def aclose(self) -> None:
        await self._transport.aclose()


def arrivals_of(response: httpx.Response) -> Arrivals:
    """The stamped body of a response that came through a `Door`."""
    arrivals: Arrivals = response.extensions["arrivals"]
    return arrivals


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """`body` as JSON in UTF-8; characters that cannot be encoded become U+FFFD."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return whole_characters(text).encode()


def headers_for(server: "Server") -> dict[str, str]:
    """What every request carries; a key goes before user info, since both need the same header."""
    headers = {
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": f"llmlab/{__version__}",
    }
    if server.key:
        headers["authorization"] = f"Bearer {server.key}"
    elif server.user_info:
        pair = ":".join(server.user_info).encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    text = "".join(headers.values())
    if not text.isascii() or not text.isprintable():
        raise UsageError("the key has characters that cannot be sent", "Check LLMLAB_API_KEY")
    return headers


def transport_for(server: "Server", clock: Callable[[], int]) -> httpx.AsyncBaseTransport:
    if server.proxy is None:
        return StampingTransport(clock)
    try:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncHTTPTransport(proxy=server.proxy, trust_env=False, limits=limits)
    except ImportError as error:
        raise UsageError("a SOCKS proxy needs one more package", "Get it with: pip install 'httpx[socks]'") from error
    except (ValueError, httpx.InvalidURL) as error:
        raise UsageError("the proxy from the environment cannot be used", "Check HTTPS_PROXY and ALL_PROXY") from error


def unreadable(shown: str, path: str) -> ServerError:
    return ServerError(f"{shown} did not answer like {path}", "Check the address")
