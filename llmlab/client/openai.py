"""The OpenAI-compatible wire: what to send to /v1/chat/completions, and what its events mean; no I/O, no clock."""

from collections.abc import Sequence
from typing import Any

from llmlab.client.events import Done, Event, Figures, Piece, ToolCalls, first_text
from llmlab.client.lines import parse, start_of
from llmlab.client.options import ChatOptions
from llmlab.client.wire import Wire
from llmlab.messages import Message

PATH = "/v1/chat/completions"
LONGEST_EVENT = 1000
OTHER_FIELDS = (b":", b"event:", b"id:", b"retry:")
BARE_FIELDS = (b"data", b"event", b"id", b"retry")


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


class OpenAIWire(Wire):
    """Reads an answer of /v1/chat/completions, as server-sent events or whole; some servers end without [DONE]."""

    __slots__ = ("_calls", "_open", "_reason", "_timings", "_usage")

    PATH = PATH

    def __init__(self) -> None:
        super().__init__()
        self._open: list[bytes] = []  # data lines of an event that is not JSON yet
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._reason: str | None = None

    def feed(self, data: bytes) -> list[Event]:
        # Nearly every token comes as one whole event in one chunk; a chunk of several is no JSON value.
        if self._lines.clean and not (self.ended or self._open or self._whole) and data.startswith(b"data: {"):
            value = parse(data[6:]) if data.endswith(b"\n") else None
            if type(value) is dict:
                self._events = []
                self._take(value)
                return self._events
        return super().feed(data)

    def _line(self, line: bytes) -> None:
        if self._whole:
            self._odd_line(line)
        elif line.startswith(b"data:"):
            self._data(line[5:].strip())
        elif line.startswith(OTHER_FIELDS) or line in BARE_FIELDS:
            return
        elif line[:1] == b"{" and isinstance(value := parse(line), dict):
            self._object(value)
        else:
            self._odd_line(line)

    def _rest(self, rest: bytes) -> None:
        if self._seen or rest[:1] != b"{" or parse(rest):
            self._line(rest)

    def _finish(self) -> None:
        if self._reason is not None:
            self._done()

    def _data(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._done()
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

    def _object(self, value: dict[str, Any]) -> None:
        if "choices" not in value and ("done" in value or "response" in value):
            self._fail(f"speaks Ollama's protocol, not {PATH}", "Ask with --api ollama")
            return
        self._take(value)
        if not self.ended and self._reason is not None:
            self._done()

    def _take(self, data: dict[str, Any]) -> None:
        self._seen = True
        if data.get("error"):
            self._report(data)
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
            content = delta.get("content")
            if len(delta) > 1 or not isinstance(content, str):
                self._delta(delta)
            elif content:
                self._events.append(Piece("content", content))
        reason = choice.get("finish_reason")
        if reason:
            self._reason = first_text(reason) or self._reason

    def _delta(self, delta: dict[str, Any]) -> None:
        """A delta that holds more than a text."""
        thinking = first_text(delta.get("reasoning_content"), delta.get("reasoning"), delta.get("thinking"))
        if thinking:
            self._events.append(Piece("thinking", thinking))
        if delta.get("content"):
            self._content(delta["content"])
        if delta.get("tool_calls"):
            self._tools(delta["tool_calls"])

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

    def _done(self) -> None:
        if self._calls:
            self._events.append(ToolCalls(list(self._calls.values())))
        self._events.append(read_done(self._reason, self._usage, self._timings))
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
        prompt = figures.count(prompt_n + (cache_n or 0))
    return Done(
        reason=reason,
        prompt_tokens=prompt,
        cached_tokens=cached if cached is not None else cache_n,
        output_tokens=output if output is not None else figures.count(timings.get("predicted_n")),
        prefill_ns=figures.span(timings.get("prompt_ms"), 1_000_000),
        decode_ns=figures.span(timings.get("predicted_ms"), 1_000_000),
        odd=figures.odd,
    )
