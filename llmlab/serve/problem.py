"""Problem: an answer that is an error, in the shape of the protocol that was spoken."""

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.errors import LabError, Overflow, ServerError, SilenceTimeout, Unreachable
from llmlab.serve.asgi import Headers, Scope, Send

BUSY_STATUSES = (429, 503)
# What a caller can mend, as the server said it; anything else it answers is the server's own trouble.
CALLERS_STATUSES = (400, 404)
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong and what to do next; `detail` names the fields of a request that cannot be used.

    `close` ends the connection, because what is left of the request will not be read.
    """

    status: int
    what: str
    hint: str | None = None
    detail: Sequence[Mapping[str, Any]] = ()
    headers: tuple[tuple[bytes, bytes], ...] = ()
    close: bool = False

    @property
    def text(self) -> str:
        return self.what if self.hint is None else f"{self.what}. {self.hint}"


def problem_of(error: LabError) -> Problem:
    """The status that tells a client what a LabError means."""
    if isinstance(error, Unreachable):
        return Problem(502, error.what, error.hint)
    if isinstance(error, SilenceTimeout):
        return Problem(504, error.what, error.hint)
    if isinstance(error, Overflow):
        return Problem(413, error.what, error.hint)
    if isinstance(error, ServerError):
        if error.http_status in BUSY_STATUSES:
            return busy(error.what, error.hint, error.retry_after_s)
        return Problem(error.http_status if error.http_status in CALLERS_STATUSES else 502, error.what, error.hint)
    return Problem(500, error.what, error.hint)


def fault_of(error: Exception) -> Problem:
    """A fault of our own, in one line that says where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.name} ({Path(where.filename).name})"
    return Problem(500, f"a fault of llmlab: {type(error).__name__} in {place}", "Its terminal says the same")


def busy(what: str, hint: str | None, retry_after_s: float | None = None) -> Problem:
    """A 503 that says when to come back."""
    seconds = max(1, math.ceil(retry_after_s or 1))
    return Problem(503, what, hint, headers=((b"retry-after", str(seconds).encode()),))


def body_of(path: str, problem: Problem) -> dict[str, Any]:
    """The JSON body: OpenAI's shape under /v1, Ollama's under /api, elsewhere `error`, `hint` and `detail`."""
    if path.startswith("/v1/"):
        kind = OPENAI_TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
        return {"error": {"message": problem.text, "type": kind, "param": None, "code": None}}
    if path.startswith("/api/"):
        return {"error": problem.text}
    body: dict[str, Any] = {"error": problem.what, "hint": problem.hint}
    return body | {"detail": list(problem.detail)} if problem.detail else body


async def send_json(send: Send, status: int, body: Any, more: Headers) -> None:
    """One JSON answer, and nothing else."""
    raw = json.dumps(body).encode()
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})


async def send_problem(scope: Scope, send: Send, problem: Problem, more: Headers | None = None) -> None:
    """Answer with `problem`."""
    headers = [*problem.headers, *(more or ()), *([(b"connection", b"close")] if problem.close else [])]
    await send_json(send, problem.status, body_of(scope["path"], problem), headers)
