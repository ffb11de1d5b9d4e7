"""Ollama's wire: what to send to /api/chat, and what its lines mean; no I/O, no clock."""

from collections.abc import Sequence
from typing import Any

from llmlab.client.events import Done, Event, Fault, Figures, Piece, ToolCalls, first_text
from llmlab.client.lines import Lines, parse, start_of
from llmlab.client.options import ChatOptions
from llmlab.client.speech import said, unfold
from llmlab.messages import Message

PATH = "/api/chat"
NOT_OURS = "did not answer like Ollama's /api/chat"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


class OllamaWire:
    """Reads an answer of /api/chat or /api/generate, streaming or whole: bytes in, events out.

    After a `Fault` or `Done` nothing more is read. An answer that ends without either is incomplete.
    """

    __slots__ = ("_events", "_lines", "_seen", "_whole", "ended")

    def __init__(self) -> None:
        self._lines = Lines()
        self._events: list[Event] = []
        self._seen = False
        self._whole: list[bytes] = []
        self.ended = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order."""
        self._events = []
        for line in self._lines.feed(data):
            if self.ended:
                break
            value = None if self._whole else parse(line)
            if type(value) is dict:
                self._take(value)
            else:
                self._odd_line(line)
        return self._events

    def end(self) -> list[Event]:
        """The events of what was left without a newline when the body ended."""
        self._events = []
        rest = self._lines.rest()
        if self._whole:
            self._one_value(b"\n".join([*self._whole, rest]))
        elif rest and not self.ended:
            data = parse(rest)
            if isinstance(data, dict):
                self._take(data)
            elif not self._seen and rest[:1] != b"{":
                self._foreign(rest)
        return self._events

    def _odd_line(self, line: bytes) -> None:
        """A line that is no JSON object by itself."""
        line = line.removeprefix(BYTE_ORDER_MARK)
        if self._whole:
            self._whole.append(line)
        elif self._seen:
            self._fail(f"sent a line that is not JSON: {start_of(line)}")
        elif line[:1] != b"{":
            self._foreign(line)
        elif isinstance(data := parse(line), dict):
            self._take(data)
        else:
            # A server may answer with one object over several lines; only the end shows whether it is JSON.
            self._whole.append(line)

    def _one_value(self, text: bytes) -> None:
        data = parse(text)
        if isinstance(data, dict):
            self._take(data)
        else:
            self._foreign(text)

    def _take(self, data: dict[str, Any]) -> None:
        message = data.get("message")
        if type(message) is dict:
            content, thinking = message.get("content"), message.get("thinking")
            calls = message.get("tool_calls")
        else:
            content, thinking, calls = data.get("response"), data.get("thinking"), None
        if thinking and isinstance(thinking, str):
            self._events.append(Piece("thinking", thinking))
        if content and isinstance(content, str):
            self._events.append(Piece("content", content))
        if calls and isinstance(calls, list):
            self._events.append(ToolCalls([call for call in calls if isinstance(call, dict)]))
        if data.get("error"):
            self._fail(said(data["error"]) or "reported an error", body=unfold(data))
        elif data.get("done") is True or data.get("done_reason"):
            self._events.append(read_done(data))
            self.ended = True
        elif not self._seen and "choices" in data:
            self._foreign(b"data:")
        self._seen = True

    def _foreign(self, line: bytes) -> None:
        if line.startswith((b"data:", b"event:", b":")):
            what = f"speaks the OpenAI protocol, not Ollama's /api/chat: {start_of(line)}"
            self._fail(what, "Ask with --api openai")
        elif line.lstrip()[:1] == b"<":
            self._fail(f"{NOT_OURS} but with an HTML page", "Check the address")
        else:
            self._fail(f"{NOT_OURS}: {start_of(line)}", "Check the address")

    def _fail(self, what: str, hint: str | None = None, body: object = None) -> None:
        self._events.append(Fault(what, hint, body))
        self.ended = True


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
