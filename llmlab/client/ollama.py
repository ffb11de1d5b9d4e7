"""Ollama's wire: what to send to /api/chat, and what its lines mean; no I/O, no clock."""

from collections.abc import Sequence
from typing import Any

from llmlab.client.events import Done, Event, Figures, Piece, ToolCalls, first_text
from llmlab.client.lines import parse, start_of
from llmlab.client.options import ChatOptions
from llmlab.client.wire import Wire
from llmlab.messages import Message

PATH = "/api/chat"


def request_body(messages: Sequence[Message], options: ChatOptions) -> dict[str, Any]:
    """The JSON body of a chat. `shift` would reload the model and num_predict 0 means no limit: neither is sent."""
    body: dict[str, Any] = {key: value for key, value in options.extra.items() if key != "shift"}
    model_options = {key: value for key, value in options.options.items() if key != "shift"}
    if options.num_ctx is not None:
        model_options["num_ctx"] = options.num_ctx
    if options.num_predict is not None:
        model_options["num_predict"] = options.num_predict
    if model_options.get("num_predict") == 0:
        del model_options["num_predict"]
    body |= {"model": options.model, "messages": [m.to_wire() for m in messages], "stream": True}
    for key in ("think", "keep_alive", "truncate"):
        value = getattr(options, key)
        if value is not None:
            body[key] = value
    if model_options:
        body["options"] = model_options
    return body


class OllamaWire(Wire):
    """Reads an answer of /api/chat or /api/generate, streaming or whole."""

    __slots__ = ()

    PATH = PATH

    def feed(self, data: bytes) -> list[Event]:
        # Nearly every token comes as one whole line in one chunk; a chunk of several is no JSON value.
        if self._lines.clean and not (self.ended or self._whole) and data.endswith(b"\n"):
            value = parse(data)
            if type(value) is dict:
                self._events = []
                self._object(value)
                return self._events
        return super().feed(data)

    def _line(self, line: bytes) -> None:
        value = None if self._whole else parse(line)
        if type(value) is dict:
            self._object(value)
        elif not self._seen and not self._whole and line.startswith((b"data:", b"event:", b":")):
            self._speaks_openai(start_of(line))
        else:
            self._odd_line(line)

    def _rest(self, rest: bytes) -> None:
        value = parse(rest)
        if isinstance(value, dict) or (not self._seen and rest[:1] != b"{"):
            self._line(rest)

    def _object(self, value: dict[str, Any]) -> None:
        message = value.get("message")
        if type(message) is dict:
            content, thinking = message.get("content"), message.get("thinking")
            calls = message.get("tool_calls")
        else:
            content, thinking, calls = value.get("response"), value.get("thinking"), None
        if thinking and isinstance(thinking, str):
            self._events.append(Piece("thinking", thinking))
        if content and isinstance(content, str):
            self._events.append(Piece("content", content))
        if calls and isinstance(calls, list):
            self._events.append(ToolCalls([call for call in calls if isinstance(call, dict)]))
        if value.get("error"):
            self._report(value)
        elif value.get("done") is True or value.get("done_reason"):
            self._events.append(read_done(value))
            self.ended = True
        elif not self._seen and "choices" in value:
            self._speaks_openai("choices")
        self._seen = True

    def _speaks_openai(self, sign: str) -> None:
        self._fail(f"speaks the OpenAI protocol, not Ollama's {PATH}: {sign}", "Ask with --api openai")


def read_done(data: dict[str, Any]) -> Done:
    """The figures of the closing line; every one of them may be missing."""
    figures = Figures()
    return Done(
        reason=first_text(data.get("done_reason")) or None,
        prompt_tokens=figures.count(data.get("prompt_eval_count")),
        cached_tokens=figures.count(data.get("prompt_eval_cached_count")),
        output_tokens=figures.count(data.get("eval_count")),
        total_ns=figures.span(data.get("total_duration")),
        load_ns=figures.count(data.get("load_duration")),
        prefill_ns=figures.span(data.get("prompt_eval_duration")),
        decode_ns=figures.span(data.get("eval_duration")),
        odd=figures.odd,
    )
