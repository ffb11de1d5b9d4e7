"""The OpenAPI document: what is really asked and sent, on our own paths and on the proxied ones."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from llmlab.serve.asked import PROTOCOLS, Protocol
from llmlab.serve.chat_request import ChatRequest
from llmlab.serve.events import EVENTS, Filling

REF = "#/components/schemas/{model}"
JSON, EVENT_STREAM = "application/json", "text/event-stream"
DESCRIPTION = """\
A streaming API with stats for the language models on your own machine, and recording proxies for the clients of Ollama
and OpenAI. Everything under `/api` and `/v1` that is not listed passes through to the server unrecorded, but for what
would change its models, which is refused with 403.
"""
STATUSES = {
    400: "The server cannot use the request.",
    401: "The key is missing or wrong.",
    403: "Another Host or origin, or something that would change the server's models.",
    404: "No such model, or no such path.",
    405: "Not with this method.",
    408: "The request's body did not come.",
    413: "The body is too large, or the messages that must stay do not fit into the window.",
    422: "A field cannot be used; `detail` names it.",
    500: "A fault of llmlab.",
    502: "The server is not there, or did not answer like one.",
    503: "Too many calls at once, here or at the server; Retry-After says when to come back.",
    504: "The server was silent for too long.",
}
GUARD = (401, 403)
CHAT = (*GUARD, 400, 404, 408, 413, 422, 502, 503, 504)
PROXY = (*GUARD, 400, 404, 408, 413, 502, 503, 504)


class Field422(BaseModel):
    """A field that cannot be used."""

    loc: list[str | int]
    msg: str
    type: str


class ProblemBody(BaseModel):
    """What went wrong, what to do next, and for a 422 the fields that cannot be used."""

    error: str
    hint: str | None
    detail: list[Field422] = []


class OllamaError(BaseModel):
    """An error as Ollama writes it."""

    error: str | dict[str, Any]


class OpenAIErrorDetail(BaseModel):
    message: str
    type: str | None
    param: str | None
    code: str | int | None


class OpenAIError(BaseModel):
    """An error as OpenAI writes it."""

    error: OpenAIErrorDetail | str


def describe(pages: FastAPI) -> None:
    """Give `pages` the document of everything that is served, made once when it is asked for."""

    def document() -> dict[str, Any]:
        if pages.openapi_schema is None:
            pages.openapi_schema = _document(pages)
        return pages.openapi_schema

    pages.openapi = document  # type: ignore[method-assign]


def _chat_operation() -> dict[str, Any]:
    stream = {"itemSchema": {"anyOf": [_event(name, model) for name, model in EVENTS]}}
    return {
        "operationId": "chat",
        "summary": "Ask, and read the answer as server-sent events",
        "description": 'Pieces as `data: {"delta": …}` and `data: {"thinking": …}`, after the first one '
        "`event: receipt`, last `event: stats` or `event: error`. Comments keep an idle line alive.",
        "requestBody": {"required": True, "content": {JSON: {"schema": _ref(ChatRequest)}}},
        "responses": {"200": {"description": "The answer.", "content": {EVENT_STREAM: stream}}}
        | _problems(CHAT, ProblemBody),
    }


def _window_operation() -> dict[str, Any]:
    filling = {"description": "The window.", "content": {JSON: {"schema": _ref(Filling)}}}
    return {
        "operationId": "window",
        "summary": "How a request to /chat would fill the window",
        "description": "The budget's decision, without asking the model; a session stays as it is.",
        "requestBody": {"required": True, "content": {JSON: {"schema": _ref(ChatRequest)}}},
        "responses": {"200": filling} | _problems(CHAT, ProblemBody),
    }


def own_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that each of our own paths can give."""
    return {int(status): answer for status, answer in _problems((*GUARD, *statuses), ProblemBody).items()}


def _document(pages: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=pages.title, version=pages.version, description=DESCRIPTION, routes=pages.routes)
    document["paths"] |= {"/chat": {"post": _chat_operation()}, "/window": {"post": _window_operation()}}
    models: list[type[BaseModel]] = [
        ChatRequest,
        *(model for _, model in EVENTS),
        Filling,
        ProblemBody,
        OllamaError,
        OpenAIError,
    ]
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
    for path, protocol in PROTOCOLS.items():
        document["paths"][path] = {"post": _proxied(protocol)}
    return document


def _proxied(protocol: Protocol) -> dict[str, Any]:
    kind, error = ("application/x-ndjson", OllamaError) if protocol.ollama else (EVENT_STREAM, OpenAIError)
    content: dict[str, Any] = {JSON: {"schema": {"type": "object"}}, kind: {"schema": {"type": "string"}}}
    headers = {
        "x-llmlab-call": _header("The id of the row that the call becomes."),
        "x-llmlab-dropped": _header("How many messages the budget left out; only with `serve --budget`."),
        "x-llmlab-cut": _header("What is known of a silent cut by the server: no, suspected or proved."),
    }
    needed: dict[str, Any] = {"model": {"type": "string"}}
    needed |= {"messages": {"type": "array", "items": {"type": "object"}}} if protocol.messages else {}
    return {
        "summary": f"{protocol.path}, relayed and recorded",
        "description": "The server's answer, byte for byte, with its own status.",
        "operationId": "relay" + protocol.path.replace("/", "_"),
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {"type": "object", "properties": needed, "required": ["model"]}}},
        },
        "responses": {"200": {"description": "The answer.", "content": content, "headers": headers}}
        | _problems(PROXY, error)
        | {"default": {"description": "Any other status with which the server itself answers."}},
    }


def _event(name: str | None, model: type[BaseModel]) -> dict[str, Any]:
    """One server-sent event, whose data is one line of JSON."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": _ref(model)}
    if name is None:
        return {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {"type": "object", "properties": {"event": {"const": name}, "data": data}, "required": ["event", "data"]}


def _problems(statuses: tuple[int, ...], body: type[BaseModel]) -> dict[str, dict[str, Any]]:
    return {
        str(status): {"description": STATUSES[status], "content": {JSON: {"schema": _ref(body)}}}
        for status in sorted(statuses)
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}


def _header(text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": "string"}}
