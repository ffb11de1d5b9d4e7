"""The application: guard, proxies and passage in bare ASGI, everything else as FastAPI routes."""

import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from llmlab import __version__
from llmlab.budget import DEFAULT_NUM_CTX
from llmlab.errors import LabError
from llmlab.serve.asgi import App, ClientLeft, Receive, Scope, Send, read_body
from llmlab.serve.asked import PROTOCOLS
from llmlab.serve.chat_events import ChatEvents
from llmlab.serve.chat_request import ChatRequest, read_chat_request
from llmlab.serve.guard import BodyRefused
from llmlab.serve.metrics import CONTENT_TYPE, Metrics
from llmlab.serve.openapi import describe, own_responses
from llmlab.serve.page import static_files
from llmlab.serve.passage import Passage
from llmlab.serve.problem import Problem, body_of, problem_of, send_problem
from llmlab.serve.proxy import Proxy


class Health(BaseModel):
    """The server is up; `model` is what it answers with."""

    status: str = "ok"
    model: str
    version: str = __version__


class Router:
    """Sends each request to what answers it; whatever goes wrong becomes an answer in the protocol's shape.

    `tell` gets one line for each fault of our own.
    """

    def __init__(self, pages: App, proxy: Proxy, passage: Passage, tell: Callable[[str], None]) -> None:
        self.pages = pages
        self.proxy = proxy
        self.passage = passage
        self.tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._route(scope, receive, send)
        except ClientLeft:
            return
        except BodyRefused as refused:
            await send_problem(scope, send, refused.problem)
        except Exception as error:
            problem = fault_of(error)
            self.tell(f"Error: {problem.what}, while answering {scope['path'][:80]!r}")
            # Where the answer has begun, nothing more is sent, and the client sees that it was cut.
            with suppress(RuntimeError):
                await send_problem(scope, send, problem)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        protocol = PROTOCOLS.get(path) if method == "POST" else None
        if protocol is not None:
            await self.proxy.answer(protocol, await read_body(receive), scope, receive, send)
        elif path.startswith(("/api/", "/v1/")) or (method == "HEAD" and path == "/"):
            await self.passage.answer(await read_body(receive), scope, receive, send)
        else:
            if path in ("/chat", "/window") and method == "POST":
                scope["llmlab.body"] = await read_body(receive)
            await self.pages(scope, receive, send)


def fault_of(error: Exception) -> Problem:
    """A fault of our own, in one line that says where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.name} ({Path(where.filename).name})"
    return Problem(500, f"a fault of llmlab: {type(error).__name__} in {place}", "Its terminal says the same")


class Answered(Response):
    """A response that a handler gives by itself, in bare ASGI, so that it can watch the client leave."""

    def __init__(self, chat: ChatEvents, request: ChatRequest | Problem) -> None:
        super().__init__()
        self.chat = chat
        self.request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(self.request, Problem):
            await send_problem(scope, send, self.request)
        else:
            await self.chat.answer(self.request, scope, receive, send)


class Info(BaseModel):
    """What the page must know: the models there are, the window, and how llmlab was started."""

    model: str
    models: list[str]
    server: str
    num_ctx: int | None
    budget: bool
    version: str = __version__


def build_pages(chat: ChatEvents, metrics: Metrics) -> FastAPI:
    """The routes that are llmlab's own."""
    pages = FastAPI(title="llmlab", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    pages.add_exception_handler(HTTPException, _as_problem)
    pages.add_exception_handler(Exception, _as_fault)

    @pages.post("/chat")
    async def chat_route(request: Request) -> Response:
        return Answered(chat, read_chat_request(request.scope["llmlab.body"]))

    @pages.post("/window")
    async def window_route(request: Request) -> Response:
        asked = read_chat_request(request.scope["llmlab.body"])
        try:
            if not isinstance(asked, Problem):
                return JSONResponse((await chat.fill(asked)).model_dump())
            problem = asked
        except LabError as error:
            problem = problem_of(error)
        return JSONResponse(body_of("/window", problem), problem.status)

    @pages.get("/healthz", responses=own_responses())
    async def healthz() -> Health:
        return Health(model=chat.ledger.target.model.name)

    @pages.get("/metrics", response_class=PlainTextResponse, responses=own_responses())
    async def metrics_route() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    @pages.get("/info", responses=own_responses())
    async def info() -> Info:
        target, settings = chat.ledger.target, chat.settings
        try:
            names = [model.name for model in await target.client.models()]
        except LabError:
            names = []
        return Info(
            model=target.model.name,
            models=names or [target.model.name],
            server=target.server.shown,
            num_ctx=settings.num_ctx or (DEFAULT_NUM_CTX if target.api == "ollama" else target.window),
            budget=settings.budget is not False,
        )

    @pages.get("/openapi.json", include_in_schema=False)
    async def openapi_route() -> JSONResponse:
        return JSONResponse(pages.openapi())

    @pages.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _static(request, "index.html")

    @pages.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return _static(request, name)

    describe(pages)
    return pages


def _static(request: Request, name: str) -> Response:
    found = static_files().get(name)
    if found is None:
        raise HTTPException(404)
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=found.headers)
    return Response(found.body, headers=found.headers)


async def _as_problem(request: Request, error: Exception) -> Response:
    """FastAPI's own refusals in our shape."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:80]}"
    what = f"nothing answers {where}" if error.status_code in (404, 405) else str(error.detail)
    problem = Problem(error.status_code, what, "What there is: /openapi.json")
    return JSONResponse(body_of(request.url.path, problem), error.status_code, error.headers)


async def _as_fault(request: Request, error: Exception) -> Response:
    """A fault of our own in our shape; the router says it on the terminal."""
    return JSONResponse(body_of(request.url.path, fault_of(error)), 500)
