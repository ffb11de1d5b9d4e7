"""The small routes of our own, with FastAPI: health, metrics, the page and the document of everything."""

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from llmlab import __version__
from llmlab.errors import LabError
from llmlab.serve.chat_events import ChatEvents
from llmlab.serve.metrics import CONTENT_TYPE, Metrics
from llmlab.serve.openapi import describe, own_responses
from llmlab.serve.page import static_files
from llmlab.serve.problem import Problem, body_of, fault_of


class Health(BaseModel):
    """The server is up; `model` is what it answers with."""

    status: str = "ok"
    model: str
    version: str = __version__


class Info(BaseModel):
    """What the page must know: the models there are, the window, and how llmlab was started."""

    model: str
    models: list[str]
    server: str
    num_ctx: int | None
    budget: bool
    version: str = __version__


def build_pages(chat: ChatEvents, metrics: Metrics) -> FastAPI:
    """What is not streamed. /chat, /window and the proxied paths are answered before, and only described here."""
    pages = FastAPI(title="llmlab", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    pages.add_exception_handler(HTTPException, _as_problem)
    pages.add_exception_handler(Exception, _as_fault)

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
            num_ctx=target.num_ctx(settings.num_ctx),
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
