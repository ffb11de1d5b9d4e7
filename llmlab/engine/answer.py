"""An answer: the pieces a runner sends for one prompt, and what they cost."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from llmlab.engine.link import Broken, Link, Refused
from llmlab.engine.loop import LoopWatch
from llmlab.engine.options import sampling
from llmlab.engine.refusal import Refusal
from llmlab.engine.runner import Runner
from llmlab.engine.window import KEPT_AT_FRONT, Wire, fit, half

TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the "
    "context length in settings, or use a model with a longer context length"
)
BROKEN = "an error was encountered while running the model: unexpected EOF"


@dataclass(frozen=True)
class Question:
    """What is asked: `messages`, or a `prompt` that goes to the model as it is.

    `options` are checked; `extra` goes to llama.cpp untouched (format, template arguments). `truncate` False
    refuses what does not fit; `shift` False ends the answer where the window is full.
    """

    messages: Sequence[Wire] = ()
    prompt: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    truncate: bool = True
    shift: bool = True


@dataclass(frozen=True)
class Piece:
    content: str = ""
    thinking: str = ""


@dataclass(frozen=True)
class End:
    """`reason` is stop, length or repeat (it had come to loop); counts are tokens, durations ns."""

    reason: str
    prompt_tokens: int
    cached_tokens: int
    prefill_ns: int
    output_tokens: int
    decode_ns: int


async def answer(runner: Runner, question: Question) -> AsyncGenerator[Piece | End]:
    """The pieces of the answer and its end; Refusal where it cannot begin, or breaks."""
    path, body = await prepare(runner, question)
    try:
        try:
            async for item in read(runner.link, path, body):
                yield item
            return
        except Refused as refused:
            if refused.error.get("type") != "exceed_context_size_error" or not question.truncate:
                raise
        path, body = await shorten(runner, question, body)
        async for item in read(runner.link, path, body):
            yield item
    except Refused as refused:
        raise refusal(refused) from refused
    except Broken as broken:
        runner.broken = True
        raise Refusal(500, BROKEN) from broken


def refusal(refused: Refused) -> Refusal:
    """Ollama passes on what its llama-server says of a prompt that is too long: JSON inside JSON."""
    if refused.error.get("type") == "exceed_context_size_error":
        return Refusal(400, refused.body)
    return Refusal(refused.status, str(refused.error.get("message", refused.body)))


async def prepare(runner: Runner, question: Question) -> tuple[str, dict[str, Any]]:
    """The request as it would go if everything fits."""
    # return_progress: without it a cancelled prompt is read to its end. timings_per_token: an answer that loops is
    # ended by us, and its figures are those of its last piece.
    body = {**sampling(question.options, runner.n_ctx), **question.extra}
    body |= {"stream": True, "return_progress": True, "timings_per_token": True}
    if question.prompt is not None:
        path, body = "/completion", for_completion(body, question.prompt)
    else:
        path, body["messages"] = "/v1/chat/completions", list(question.messages)
        body["stream_options"] = {"include_usage": True}
    if not question.shift:
        await end_with_window(runner, question, body)
    return path, body


async def end_with_window(runner: Runner, question: Question, body: dict[str, Any]) -> None:
    tokens = await count(runner.link, question)
    if tokens < runner.n_ctx:
        body["n_predict"] = min(body["n_predict"], runner.n_ctx - tokens)


async def count(link: Link, question: Question, messages: Sequence[Wire] | None = None) -> int:
    if question.prompt is not None:
        return len(await tokenize(link, question.prompt))
    body = {**question.extra, "messages": list(question.messages if messages is None else messages)}
    return int((await link.ask("/v1/chat/completions/input_tokens", body))["input_tokens"])


async def tokenize(link: Link, text: str) -> list[int]:
    answer = await link.ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})
    return list(answer["tokens"])


async def render(link: Link, question: Question, messages: Sequence[Wire]) -> str:
    """The text that the template makes of the messages."""
    return str((await link.ask("/apply-template", {**question.extra, "messages": list(messages)}))["prompt"])


async def shorten(runner: Runner, question: Question, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The request again with whole messages dropped, or cut to half of the window where that is not enough."""
    link, n_ctx = runner.link, runner.n_ctx
    text = question.prompt
    if text is None:
        kept, tokens = await fit(question.messages, n_ctx, lambda messages: count(link, question, messages))
        if tokens < n_ctx:
            if not question.shift:
                body["n_predict"] = min(body["n_predict"], n_ctx - tokens)
            return "/v1/chat/completions", {**body, "messages": kept}
        text = await render(link, question, kept)
    if not question.shift:
        raise Refusal(400, TOO_LONG)
    keep = question.options.get("num_keep", KEPT_AT_FRONT)
    return "/completion", for_completion(body, half(await tokenize(link, text), n_ctx, keep))


CHAT_ONLY = ("messages", "stream_options", "chat_template_kwargs", "response_format")


def for_completion(body: dict[str, Any], prompt: str | list[int]) -> dict[str, Any]:
    """The request without a template: a text or ids, and the format in the words of that wire."""
    form = body.get("response_format")
    kept = {key: value for key, value in body.items() if key not in CHAT_ONLY}
    if form:
        kept["json_schema"] = form.get("json_schema", {}).get("schema", {"type": "object"})
    return {**kept, "prompt": prompt}


async def read(link: Link, path: str, body: dict[str, Any]) -> AsyncGenerator[Piece | End]:
    """The pieces of a streaming answer; its figures may come after the reason why it ended."""
    reason = None
    watch = LoopWatch()
    async with aclosing(link.events(path, body)) as events:
        async for event in events:
            if "error" in event:
                raise Refusal(500, str(event["error"].get("message", event["error"])))
            piece, ended = completion_piece(event) if path == "/completion" else chat_piece(event)
            reason = ended or reason
            if piece.content or piece.thinking:
                yield piece
            if "timings" not in event:
                continue
            looping = reason is None and watch.sees_loop(piece.content)
            if reason or looping:
                yield end(reason or "repeat", event["timings"])
                return
    raise Broken("unexpected EOF")


def completion_piece(event: dict[str, Any]) -> tuple[Piece, str | None]:
    reason = None
    if event.get("stop"):
        reason = "length" if event.get("stop_type") == "limit" else "stop"
    return Piece(event.get("content", "")), reason


def chat_piece(event: dict[str, Any]) -> tuple[Piece, str | None]:
    if not event.get("choices"):
        return Piece(), None
    choice = event["choices"][0]
    delta = choice.get("delta", {})
    piece = Piece(delta.get("content") or "", delta.get("reasoning_content") or "")
    reason = choice.get("finish_reason")
    return piece, "length" if reason == "length" else "stop" if reason else None


def end(reason: str, timings: dict[str, Any]) -> End:
    return End(
        reason=reason,
        prompt_tokens=timings["prompt_n"] + timings["cache_n"],
        cached_tokens=timings["cache_n"],
        prefill_ns=duration_ns(timings["prompt_ms"]),
        output_tokens=timings["predicted_n"],
        decode_ns=duration_ns(timings["predicted_ms"]),
    )


def duration_ns(milliseconds: float) -> int:
    """At least a microsecond, as Ollama reports what took no time."""
    return max(1000, round(milliseconds * 1e6))
