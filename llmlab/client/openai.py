"""The OpenAI-compatible wire: what to send to /v1/chat/completions, and what its events mean; no I/O, no clock."""

from collections.abc import Sequence
from typing import Any

from llmlab.client.events import Done, Event, Fault, Figures, Piece, ToolCalls, first_text
from llmlab.client.lines import Lines, parse, start_of
from llmlab.client.ollama import BYTE_ORDER_MARK
from llmlab.client.options import ChatOptions
from llmlab.client.speech import said, unfold
from llmlab.messages import Message

PATH = "/v1/chat/completions"
NOT_OURS = "did not answer like /v1/chat/completions"
LONGEST_EVENT = 1000


def request_body(messages: Sequence[Message], options: ChatOptions, include_usage: bool = True) -> dict[str, Any]:
    """The JSON body of a chat; this wire has no num_ctx. Model options become top-level keys."""
    body: dict[str, Any] = {**options.extra, **options.options}
    limit = options.num_predict if options.num_predict is not None else body.pop("num_predict", None)
    for key in ("num_ctx", "num_predict", "shift"):
        body.pop(key, None)
    body |= {"model": options.model, "messages": [m.to_wire() for m in messages], "stream": True}
    if limit is not None and limit > 0:
        body["max_tokens"] = limit
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    if isinstance(options.think, bool):
        body["chat_template_kwargs"] = {"enable_thinking": options.think}
    elif options.think is not None:
        body["reasoning_effort"] = options.think
    return body


class OpenAIWire:
    """Reads an answer of /v1/chat/completions, as server-sent events or whole: bytes in, events out.

    After a `Fault` or `Done` nothing more is read. An answer that ends without either is incomplete.
    """

    __slots__ = ("_calls", "_events", "_lines", "_open", "_reason", "_seen", "_timings", "_usage", "_whole", "ended")

    def __init__(self) -> None:
        self._lines = Lines()
        self._events: list[Event] = []
        self._seen = False
        self._open: list[bytes] = []  # data lines of an event that is not JSON yet
        self._whole: list[bytes] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._reason: str | None = None
        self.ended = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order."""
        self._events = []
        for line in self._lines.feed(data):
            if self.ended:
                break
            self._line(line)
        return self._events

    def end(self) -> list[Event]:
        """The events of what was left when the body ended; some servers end without [DONE]."""
        self._events = []
        rest = self._lines.rest()
        if self._whole:
            self._one_value(b"\n".join([*self._whole, rest]))
        elif rest and not self.ended and (self._seen or rest[:1] != b"{" or parse(rest)):
            self._line(rest)
        if not self.ended and self._reason is not None:
            self._finish()
        return self._events

    def _line(self, line: bytes) -> None:
        if self._whole:
            self._whole.append(line)
        elif line.startswith(b"data:"):
            self._data(line[5:].strip())
        elif line.startswith((b":", b"event:", b"id:", b"retry:")) or line in (b"event", b"id", b"retry", b"data"):
            return
        elif not self._seen and line.startswith(BYTE_ORDER_MARK):
            self._line(line[len(BYTE_ORDER_MARK) :])
        elif line[:1] == b"{" and (data := parse(line)) is not None:
            self._bare(data)
        elif line[:1] == b"{" and not self._seen:
            # A server may answer with one object over several lines; only the end shows whether it is JSON.
            self._whole.append(line)
        else:
            self._foreign(line)

    def _data(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._finish()
            return
        data = parse(payload)
        if self._open or (data is None and payload[:1] == b"{"):
            self._open.append(payload)
            data = parse(b"\n".join(self._open))
            if data is None and len(self._open) < LONGEST_EVENT:
                return
        self._open = []
        if isinstance(data, dict):
            self._take(data)
        elif payload:
            self._fail(f"sent an event that is not a JSON object: {start_of(payload)}")

    def _bare(self, data: dict[str, Any]) -> None:
        if "choices" not in data and ("done" in data or "response" in data):
            self._fail("speaks Ollama's protocol, not /v1/chat/completions", "Ask with --api ollama")
        else:
            self._take(data)
            if not self.ended and self._reason is not None:
                self._finish()

    def _one_value(self, text: bytes) -> None:
        data = parse(text)
        if isinstance(data, dict):
            self._bare(data)
        else:
            self._foreign(text)

    def _take(self, data: dict[str, Any]) -> None:
        self._seen = True
        if data.get("error"):
            self._fail(said(data["error"]) or "reported an error", body=unfold(data))
            return
        usage, timings, choices = data.get("usage"), data.get("timings"), data.get("choices")
        if isinstance(usage, dict):
            self._usage = usage
        if isinstance(timings, dict):
            self._timings = timings
        if not isinstance(choices, list):
            return
        for choice in choices:
            if isinstance(choice, dict) and not choice.get("index"):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            thinking = first_text(delta.get("reasoning_content"), delta.get("reasoning"), delta.get("thinking"))
            content = delta.get("content")
            if thinking:
                self._events.append(Piece("thinking", thinking))
            if content:
                self._content(content)
            if delta.get("tool_calls"):
                self._tools(delta["tool_calls"])
        self._reason = first_text(choice.get("finish_reason")) or self._reason

    def _content(self, content: object) -> None:
        parts = content if isinstance(content, list) else [{"text": content}]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else None
            if text and isinstance(text, str):
                self._events.append(Piece("content", text))

    def _tools(self, deltas: object) -> None:
        """Puts the fragments of tool calls together; they come out with the end, the first one counts as it comes."""
        for position, delta in enumerate(deltas if isinstance(deltas, list) else ()):
            if not isinstance(delta, dict):
                continue
            index = delta.get("index")
            call = self._calls.setdefault(index if isinstance(index, int) else position, {})
            function = delta.get("function")
            if isinstance(function, dict):
                known = call.setdefault("function", {"name": "", "arguments": ""})
                known["name"] = known["name"] or first_text(function.get("name"))
                known["arguments"] = join_arguments(known["arguments"], function.get("arguments"))
            call.update({key: value for key, value in delta.items() if key not in ("index", "function") and value})
            self._events.append(ToolCalls([]))

    def _finish(self) -> None:
        if self._calls:
            self._events.append(ToolCalls(list(self._calls.values())))
        self._events.append(read_done(self._reason, self._usage, self._timings))
        self.ended = True

    def _foreign(self, line: bytes) -> None:
        if line.lstrip()[:1] == b"<":
            self._fail(f"{NOT_OURS} but with an HTML page", "Check the address")
        elif self._seen:
            self._fail(f"sent a line that is no server-sent event: {start_of(line)}")
        else:
            self._fail(f"{NOT_OURS}: {start_of(line)}", "Check the address")

    def _fail(self, what: str, hint: str | None = None, body: object = None) -> None:
        self._events.append(Fault(what, hint, body))
        self.ended = True


def join_arguments(known: Any, more: object) -> Any:
    """Arguments come as fragments of a text; a server that sends them as an object sends them whole."""
    if isinstance(more, str) and isinstance(known, str):
        return known + more
    return known if more is None else more


def read_done(reason: str | None, usage: dict[str, Any], timings: dict[str, Any]) -> Done:
    """The figures of `usage`, and where llama-server adds its `timings` (milliseconds) those too."""
    figures = Figures()
    details = usage.get("prompt_tokens_details")
    cached = figures.count(details.get("cached_tokens")) if isinstance(details, dict) else None
    cache_n, prompt_n = figures.count(timings.get("cache_n")), figures.count(timings.get("prompt_n"))
    prompt = figures.count(usage.get("prompt_tokens"))
    output = figures.count(usage.get("completion_tokens"))
    if prompt is None and prompt_n is not None:
        prompt = prompt_n + (cache_n or 0)
    return Done(
        reason=reason,
        prompt_tokens=prompt,
        cached_tokens=cached if cached is not None else cache_n,
        output_tokens=output if output is not None else figures.count(timings.get("predicted_n")),
        prefill_ns=figures.span(timings.get("prompt_ms"), 1_000_000),
        decode_ns=figures.span(timings.get("predicted_ms"), 1_000_000),
        odd=figures.odd,
    )
