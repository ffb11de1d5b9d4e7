"""The guard in front of everything: which names, pages, keys and sizes are let in."""

import asyncio
import hmac
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from llmlab.errors import UsageError
from llmlab.serve.asgi import App, ClientLeft, Headers, Message, Receive, Scope, Send, header, headers_named
from llmlab.serve.problem import Problem, send_problem
from llmlab.settings import is_loopback

KEY_VARIABLE = "LLMLAB_SERVE_KEY"
OPEN_PATHS = ("/", "/healthz")
STATIC_PREFIX = "/static/"
PREFLIGHT_S = b"600"
FORGOTTEN_TIMES = 8


def serve_key(host: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The key that every caller must show. UsageError: binding to others' reach without one."""
    key = env.get(KEY_VARIABLE, "").strip() or None
    if key is None and not is_loopback(host.strip("[]")):
        raise UsageError(
            f"{host} can be reached from other machines and {KEY_VARIABLE} is not set",
            f"Set {KEY_VARIABLE} to a long random word that clients send as `Authorization: Bearer …`, "
            "or bind to 127.0.0.1",
        )
    return key


@dataclass(frozen=True)
class Rules:
    """Who is let in.

    `bind_host` is where the server listens; `names` are further Host names and `origins` further web origins
    (`https://app.example`) that may ask; `key` is asked of everybody where it is set.
    """

    bind_host: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    key: str | None = field(default=None, repr=False)

    def host_allowed(self, host: str) -> bool:
        """Whether a Host header names this server: another name may be a web page that rebinds its DNS to us."""
        name = _host_name(host)
        if name is None:
            return False
        if name in {"localhost", self.bind_host.lower().strip("[]"), *(n.lower() for n in self.names)}:
            return True
        if _is_address(name) and is_loopback(name):
            return True
        if is_loopback(self.bind_host.strip("[]")):
            return False
        return _is_address(name) or name in _own_names()

    def origin_allowed(self, origin: str, scheme: str, host: str) -> bool:
        """Whether a page of `origin` may ask: our own page, or one that was listed."""
        return origin in self.origins or origin.lower() == f"{scheme}://{host}".lower()


def _host_name(host: str) -> str | None:
    """The name in a Host header, lower case, without port and brackets; None where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        name = parts.hostname
        _ = parts.port
    except ValueError:
        return None
    if not name or parts.path or parts.query or parts.fragment or "@" in host:
        return None
    return name.removesuffix(".")


def _is_address(name: str) -> bool:
    """An address, unlike a name, cannot be rebound."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name.partition('.')[0]}.local"}


class Guard:
    """An ASGI application in front of `app` that answers what may not pass, and bounds what may."""

    def __init__(self, app: App, rules: Rules, max_body_bytes: int, body_timeout_s: float = 30.0) -> None:
        self.app = app
        self.rules = rules
        self.max_body_bytes = max_body_bytes
        self.body_timeout_s = body_timeout_s
        self._key = rules.key.encode() if rules.key else None
        self._known_host = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        origin = header(scope, b"origin")
        problem = self._refusal(scope, origin)
        cors = self._cors(origin)
        if (
            problem is None
            and scope["method"] == "OPTIONS"
            and cors
            and header(scope, b"access-control-request-method")
        ):
            await _preflight(scope, send, cors)
            return
        problem = problem or self._unauthorised(scope)
        if cors:
            send = _with_headers(send, cors)
        if problem is not None:
            await send_problem(scope, send, problem)
            return
        await self.app(scope, _Body(receive, self.max_body_bytes, self.body_timeout_s), send)

    def _refusal(self, scope: Scope, origin: str | None) -> Problem | None:
        hosts = headers_named(scope, b"host")
        if len(hosts) != 1 or not self._host_allowed(hosts[0]):
            shown = hosts[0] if hosts else ""
            return Problem(
                403, f"this server is not called {shown!r}", "Ask it by its address, or start it with --allow-host NAME"
            )
        if origin is not None:
            if self.rules.origin_allowed(origin, scope["scheme"], hosts[0]):
                return None
            return Problem(403, f"pages of {origin} may not ask this server", "List it with --origin URL")
        # Browsers send no Origin with a plain GET (an image, a script), but say where the page came from.
        site = header(scope, b"sec-fetch-site")
        visited = header(scope, b"sec-fetch-mode") == "navigate" and scope["method"] in ("GET", "HEAD")
        if site in ("cross-site", "same-site") and not visited:
            return Problem(403, "pages of another origin may not ask this server", "List it with --origin URL")
        return None

    def _host_allowed(self, host: str) -> bool:
        """Most requests name the server as the one before did."""
        if host != self._known_host:
            if not self.rules.host_allowed(host):
                return False
            self._known_host = host
        return True

    def _unauthorised(self, scope: Scope) -> Problem | None:
        if self._key is None or _is_open(scope):
            return None
        given = header(scope, b"authorization") or ""
        scheme, _, word = given.partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(word.strip().encode("latin-1"), self._key):
            return None
        hint = f"Send the header `Authorization: Bearer …` with the key of {KEY_VARIABLE}"
        return Problem(401, "the key is missing or wrong", hint, headers=((b"www-authenticate", b"Bearer"),))

    def _cors(self, origin: str | None) -> Headers:
        """The headers that let a listed page read the answer."""
        if origin is None or origin not in self.rules.origins:
            return []
        exposed = b"x-llmlab-call, x-llmlab-dropped, x-llmlab-cut, retry-after"
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", exposed),
            (b"vary", b"origin"),
        ]


def _is_open(scope: Scope) -> bool:
    """The page itself holds no secret, and a health check has no key."""
    path = scope["path"]
    return scope["method"] == "GET" and (path in OPEN_PATHS or path.startswith(STATIC_PREFIX))


async def _preflight(scope: Scope, send: Send, cors: Headers) -> None:
    headers = [
        *cors,
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        (b"access-control-allow-headers", b"authorization, content-type"),
        (b"access-control-max-age", PREFLIGHT_S),
    ]
    if header(scope, b"access-control-request-private-network"):
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _with_headers(send: Send, more: Headers) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


class BodyRefused(Exception):
    """The request's body is too long or does not come."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class _Body:
    """`receive` with a bound on the body's size and on the time it takes to come.

    A body that is too long is read to its end, up to eight times the bound, and forgotten: a client that is still
    sending would not read the answer.
    """

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._size = 0
        self._complete = False
        self._deadline_s: float | None = None

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        message = await self._next()
        while self._size > self._max_bytes:
            if self._complete or self._size > FORGOTTEN_TIMES * self._max_bytes:
                what = f"the request's body is longer than {self._max_bytes:,} bytes"
                hint = "Send less at once, or start llmlab serve with a larger --max-body"
                raise BodyRefused(Problem(413, what, hint, close=not self._complete))
            message = await self._next()
        return message

    async def _next(self) -> Message:
        if self._deadline_s is None:
            self._deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._deadline_s):
                message = await self._receive()
        except TimeoutError:
            what = f"the request's body did not come within {self._timeout_s:g} s"
            raise BodyRefused(Problem(408, what, close=True)) from None
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self._size += len(message["body"])
        self._complete = not message.get("more_body", False)
        return message
