"""A served llmlab for tests: on a free loopback port, in front of any upstream, talked to through real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from llmlab.serve.server import Service, opened
from llmlab.serve.settings import ServeSettings
from llmlab.target import Choice
from tests.played import PlayedServer, Request, Response, json_answer

MODEL = "demo:1b"


def ollama_pages(context: int = 8192, loaded: int | None = 4096) -> list[Response]:
    """What a played Ollama says of itself: one model, loaded with a window of `loaded` tokens (None: not loaded)."""
    running = [{"name": MODEL, "model": MODEL, "context_length": loaded}] if loaded else []
    return [
        json_answer({"version": "0.32.15"}, "GET /api/version"),
        json_answer({"models": [{"name": MODEL, "model": MODEL, "digest": "ab" * 32}]}, "GET /api/tags"),
        json_answer({"models": running}, "GET /api/ps"),
        json_answer({"model_info": {"demo.context_length": context}, "capabilities": ["completion"]}, "POST /api/show"),
    ]


def openai_pages(window: int = 4096) -> list[Response]:
    """What a played llama-server says of itself."""
    return [
        json_answer({"object": "list", "data": [{"id": MODEL, "owned_by": "llamacpp"}]}, "GET /v1/models"),
        json_answer({"default_generation_settings": {"n_ctx": window}}, "GET /props"),
    ]


@asynccontextmanager
async def serving(
    upstream: str, *, timeout_s: float = 600.0, tell: Callable[[str], None] | None = None, **settings: Any
) -> AsyncIterator[Service]:
    """llmlab in front of `upstream`; streams are cut at once when it stops. Its lines go to `tell`, if there is one."""
    asked = ServeSettings(
        **{"choice": Choice(host=upstream, timeout_s=timeout_s), "port": 0, "grace_s": 0.0, **settings}
    )
    lines: list[str] = []
    async with opened(asked, tell or lines.append) as service:
        yield service
    assert not [line for line in lines if "fault of llmlab" in line]


async def until(condition: Callable[[], object]) -> None:
    """Let everything else run until `condition` holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


@asynccontextmanager
async def asking(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client of the service."""
    async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False) as client:
        yield client


class Bench(NamedTuple):
    """llmlab between a played server and a plain client."""

    upstream: PlayedServer
    service: Service
    client: httpx.AsyncClient


def sent(upstream: PlayedServer, path: str = "/api/chat") -> list[Request]:
    """What llmlab has asked the played server on `path`."""
    return [request for request in upstream.requests if request.path == path]


@asynccontextmanager
async def bench(*responses: Response, pages: list[Response] | None = None, **settings: Any) -> AsyncIterator[Bench]:
    """llmlab in front of a played server that says `pages` of itself (an Ollama unless said) and plays `responses`."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(PlayedServer([*(pages or ollama_pages()), *responses]))
        service = await stack.enter_async_context(serving(upstream.url, **settings))
        yield Bench(upstream, service, await stack.enter_async_context(asking(service)))


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Server-sent events as (name, data), read as the standard says; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        name, data = "message", None
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            if field == "event":
                name = value.strip()
            elif field == "data":
                assert data is None, "one line of data an event"
                data = json.loads(value)
        if data is not None:
            found.append((name, data))
    return found


def answer_text(found: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(data.get("delta", "") for name, data in found if name == "message")


class RawClient:
    """One request over a bare socket, for what a well-behaved client never does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str) -> "RawClient":
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def post(self, path: str, body: object, **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(raw))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + raw)
        await self.writer.drain()

    async def until(self, mark: bytes) -> bytes:
        return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        return await self.reader.read()

    def leave(self) -> None:
        self.writer.transport.abort()


def sse(*data: Any, end: str = "ok") -> Response:
    """An answer of /v1/chat/completions, one event for each of `data`."""
    steps = [{"text": f"data: {json.dumps(item) if isinstance(item, dict) else item}\n\n"} for item in data]
    headers = {"content-type": "text/event-stream"}
    return {"route": "POST /v1/chat/completions", "status": 200, "headers": headers, "body": steps, "end": end}


async def saved_calls(service: Service, rows: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """All rows of calls, once they are durable."""
    await service.ledger.settle()
    await service.store.saved()
    return rows("select * from calls order by started_utc")
