"""The form of an answer on each wire: Ollama's chat and generate lines, and OpenAI's chunks."""

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from llmlab.engine.answer import End, Piece
from llmlab.engine.refusal import Refusal
from llmlab.engine.reply import encoded


@dataclass(frozen=True)
class Cost:
    """What an answer cost: its end, and the durations (ns) that only the front knows."""

    end: End
    total_ns: int
    load_ns: int


class Form(Protocol):
    """How one answer is written; `text` is what has been said so far."""

    text: str
    kind: str
    whole_kind: str

    def piece(self, piece: Piece) -> bytes: ...
    def done(self, cost: Cost) -> bytes: ...
    def broken(self, refusal: Refusal) -> bytes: ...
    def whole(self, cost: Cost) -> dict[str, Any]: ...


class OllamaForm:
    """Lines of /api/chat, or of /api/generate where `chat` is False; `context` are the ids generate ends with."""

    kind = "application/x-ndjson"
    whole_kind = "application/json; charset=utf-8"

    def __init__(self, model: str, *, chat: bool) -> None:
        self.model = model
        self.chat = chat
        self.text = ""
        self.thinking = ""
        self.context: list[int] | None = None

    def line(self, content: str = "", thinking: str = "", **rest: Any) -> dict[str, Any]:
        thought = {"thinking": thinking} if thinking else {}
        said: dict[str, Any] = {"response": content, **thought}
        if self.chat:
            said = {"message": {"role": "assistant", "content": content, **thought}}
        return {"model": self.model, "created_at": now(), **said, **rest}

    def piece(self, piece: Piece) -> bytes:
        self.text += piece.content
        self.thinking += piece.thinking
        return encoded(self.line(piece.content, piece.thinking, done=False)) + b"\n"

    def done(self, cost: Cost) -> bytes:
        return encoded(self.line(done=True, **self.figures(cost))) + b"\n"

    def broken(self, refusal: Refusal) -> bytes:
        return encoded({"error": refusal.text}) + b"\n"

    def whole(self, cost: Cost) -> dict[str, Any]:
        return self.line(self.text, self.thinking, done=True, **self.figures(cost))

    def nothing(self, reason: str) -> dict[str, Any]:
        """The answer to a request that only loads or unloads."""
        return self.line(done=True, done_reason=reason)

    def figures(self, cost: Cost) -> dict[str, Any]:
        return {
            "done_reason": cost.end.reason,
            **({"context": self.context} if self.context is not None else {}),
            "total_duration": cost.total_ns,
            "load_duration": cost.load_ns,
            "prompt_eval_count": cost.end.prompt_tokens,
            "prompt_eval_cached_count": cost.end.cached_tokens,
            "prompt_eval_duration": cost.end.prefill_ns,
            "eval_count": cost.end.output_tokens,
            "eval_duration": cost.end.decode_ns,
        }


class OpenAIForm:
    """Chunks of /v1/chat/completions; the last one tells the usage where `usage` was asked for."""

    kind = "text/event-stream"
    whole_kind = "application/json"

    def __init__(self, model: str, *, usage: bool) -> None:
        self.head = {"id": f"chatcmpl-{secrets.randbelow(10**9)}", "created": int(time.time()), "model": model}
        self.usage = usage
        self.text = ""
        self.thinking = ""
        self.first = True

    def chunk(self, choices: list[dict[str, Any]], **rest: Any) -> bytes:
        value = {**self.head, "object": "chat.completion.chunk", "system_fingerprint": "fp_llmlab", "choices": choices}
        return b"data: " + encoded({**value, **rest}) + b"\n\n"

    def piece(self, piece: Piece) -> bytes:
        self.text += piece.content
        self.thinking += piece.thinking
        delta: dict[str, Any] = {"role": "assistant"} if self.first else {}
        self.first = False
        if piece.content:
            delta["content"] = piece.content
        if piece.thinking:
            delta["reasoning"] = piece.thinking
        return self.chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def done(self, cost: Cost) -> bytes:
        last = self.chunk([{"index": 0, "delta": {}, "finish_reason": self.reason(cost)}])
        usage = self.chunk([], usage=usage_of(cost.end)) if self.usage else b""
        return last + usage + b"data: [DONE]\n\n"

    def broken(self, refusal: Refusal) -> bytes:
        return b"data: " + encoded(openai_error(refusal)) + b"\n\n"

    def whole(self, cost: Cost) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking:
            message["reasoning"] = self.thinking
        choice = {"index": 0, "message": message, "finish_reason": self.reason(cost)}
        value = {**self.head, "object": "chat.completion", "system_fingerprint": "fp_llmlab", "choices": [choice]}
        return {**value, "usage": usage_of(cost.end)}

    def reason(self, cost: Cost) -> str:
        return "stop" if cost.end.reason == "repeat" else cost.end.reason  # that wire has no word for a loop


def usage_of(end: End) -> dict[str, Any]:
    return {
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.output_tokens,
        "total_tokens": end.prompt_tokens + end.output_tokens,
        "prompt_tokens_details": {"cached_tokens": end.cached_tokens},
    }


def openai_error(refusal: Refusal) -> dict[str, Any]:
    kinds = {400: "invalid_request_error", 404: "not_found_error"}
    kind = kinds.get(refusal.status, "api_error")
    return {"error": {"message": refusal.text, "type": kind, "param": None, "code": None}}


def now() -> str:
    """The calendar in UTC with nanoseconds, as Ollama writes it."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
