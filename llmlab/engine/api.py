"""The engine's HTTP API, as Ollama speaks it: an ASGI application that notices at once when a client leaves."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from llmlab import __version__
from llmlab.engine.body import Body
from llmlab.engine.form import openai_error
from llmlab.engine.guard import header, may_ask
from llmlab.engine.order import chat_order, generate_order, openai_order
from llmlab.engine.refusal import Refusal
from llmlab.engine.reply import Reply, Send
from llmlab.engine.service import Service

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Handler = Callable[[Reply, bytes], Awaitable[None]]

VERSION = f"{__version__}+llmlab"
PREFLIGHT = (
    ("access-control-allow-methods", "GET, POST, HEAD, OPTIONS"),
    ("access-control-allow-headers", "authorization, content-type"),
)


class Api:
    """ASGI application over one service; `host` is the name it is bound to."""

    def __init__(self, service: Service, host: str) -> None:
        self.service = service
        self.card = service.card
        self.host = host
        self.routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self.root},
            "/api/version": {"GET": self.version},
            "/api/tags": {"GET": self.tags},
            "/api/ps": {"GET": self.ps},
            "/api/show": {"POST": self.show},
            "/api/chat": {"POST": self.chat},
            "/api/generate": {"POST": self.generate},
            "/v1/models": {"GET": self.models},
            "/v1/chat/completions": {"POST": self.completions},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        data = await read_body(receive)
        if data is None:
            return
        work = asyncio.create_task(self.respond(scope, data, send))
        gone = asyncio.create_task(left(receive))
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)

    async def respond(self, scope: Scope, data: bytes, send: Send) -> None:
        headers, path, method = scope["headers"], scope["path"], scope["method"]
        origin = header(headers, b"origin")
        reply = Reply(send, [("access-control-allow-origin", origin), ("vary", "origin")] if origin else [])
        try:
            if not may_ask(headers, self.host):
                await Reply(send).whole(403)
            elif method == "OPTIONS" and origin:
                await reply.whole(204, headers=PREFLIGHT)
            else:
                await self.route(path, method)(reply, data)
        except Refusal as refusal:
            await refuse(reply, path, refusal)
        except Exception as error:
            if reply.streaming:
                raise
            await refuse(reply, path, Refusal(500, f"internal error: {error!r}"))

    def route(self, path: str, method: str) -> Handler:
        methods = {"GET": self.model_entry(path)} if path.startswith("/v1/models/") else self.routes.get(path)
        if methods is None:
            return not_found
        return methods.get("GET" if method == "HEAD" else method) or not_allowed(", ".join(methods))

    async def root(self, reply: Reply, _data: bytes) -> None:
        await reply.whole(200, b"Ollama is running", "text/plain; charset=utf-8")

    async def version(self, reply: Reply, _data: bytes) -> None:
        await reply.json({"version": VERSION})

    async def tags(self, reply: Reply, _data: bytes) -> None:
        await reply.json({"models": [await self.card.tag()]})

    async def ps(self, reply: Reply, _data: bytes) -> None:
        desk = self.service.desk
        runner = desk.runner
        loaded = [await self.card.loaded(runner, desk.expires_at_s)] if runner and runner.alive else []
        await reply.json({"models": loaded})

    async def show(self, reply: Reply, data: bytes) -> None:
        self.check(Body.parse(data).model())
        await reply.json(self.card.show())

    async def models(self, reply: Reply, _data: bytes) -> None:
        await reply.json({"object": "list", "data": [self.card.entry()]}, kind="application/json")

    def model_entry(self, path: str) -> Handler:
        async def handler(reply: Reply, _data: bytes) -> None:
            self.check(path.removeprefix("/v1/models/"))
            await reply.json(self.card.entry(), kind="application/json")

        return handler

    async def chat(self, reply: Reply, data: bytes) -> None:
        body = self.checked(data)
        await self.service.take(reply, chat_order(body, self.card))

    async def generate(self, reply: Reply, data: bytes) -> None:
        body = self.checked(data)
        await self.service.take(reply, generate_order(body, self.card))

    async def completions(self, reply: Reply, data: bytes) -> None:
        body = self.checked(data)
        await self.service.take(reply, openai_order(body, self.card))

    def checked(self, data: bytes) -> Body:
        body = Body.parse(data)
        body.messages()
        self.check(body.model())
        return body

    def check(self, name: str) -> None:
        if not self.card.is_called(name):
            raise Refusal(404, f"model '{name}' not found")


async def refuse(reply: Reply, path: str, refusal: Refusal) -> None:
    value = openai_error(refusal) if path.startswith("/v1/") else {"error": refusal.text}
    await reply.json(value, refusal.status)


async def read_body(receive: Receive) -> bytes | None:
    """The whole body, or None where the client left before it was sent."""
    parts = []
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        parts.append(event.get("body", b""))
        if not event.get("more_body"):
            return b"".join(parts)


async def left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def not_found(reply: Reply, _data: bytes) -> None:
    await reply.text(404, "404 page not found")


def not_allowed(methods: str) -> Handler:
    async def handler(reply: Reply, _data: bytes) -> None:
        await reply.text(405, "405 method not allowed", [("allow", methods)])

    return handler
