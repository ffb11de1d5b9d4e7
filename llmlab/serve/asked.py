"""What a client of one of the proxied protocols asks for, read from the body of its request."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.client.ollama import OllamaWire
from llmlab.client.openai import OpenAIWire
from llmlab.client.wire import Wire
from llmlab.messages import Message
from llmlab.serve.problem import Problem


@dataclass(frozen=True, slots=True)
class Protocol:
    """One proxied path: how its answers are read, and whether it streams when nothing is said."""

    path: str
    wire: Callable[[], Wire]
    ollama: bool
    streams: bool
    messages: bool = True


CHAT = Protocol("/api/chat", OllamaWire, ollama=True, streams=True)
GENERATE = Protocol("/api/generate", OllamaWire, ollama=True, streams=True, messages=False)
COMPLETIONS = Protocol("/v1/chat/completions", OpenAIWire, ollama=False, streams=False)
PROTOCOLS = {protocol.path: protocol for protocol in (CHAT, GENERATE, COMPLETIONS)}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came: `raw` are its bytes, `body` is what they say.

    `messages` are those that can be read as messages; `conversation` says that all could, so that they can be fitted.
    `num_ctx` and `num_predict` (tokens) are None where the client does not say. `generates` is False for a request
    that only loads or unloads the model.
    """

    protocol: Protocol
    raw: bytes
    body: Mapping[str, Any]
    model: str
    messages: tuple[Message, ...]
    conversation: bool
    num_ctx: int | None
    num_predict: int | None
    streams: bool

    @property
    def generates(self) -> bool:
        return bool(self.messages) or not self.protocol.ollama

    @property
    def pinned(self) -> int:
        return sum(m.pinned for m in self.messages)

    @property
    def marked(self) -> bool:
        """Whether a message carries the key `pinned`, which is ours and not sent on."""
        sent = self.body.get("messages")
        return isinstance(sent, list) and any(isinstance(m, dict) and "pinned" in m for m in sent)


def read_asked(protocol: Protocol, raw: bytes) -> Asked | Problem:
    """The request in `raw`, or a 400 where it is not a JSON object; everything else is the server's to judge."""
    try:
        body = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if str(error).isprintable() else "it cannot be read"
        return Problem(400, f"the body is not JSON: {reason}")
    if not isinstance(body, dict):
        return Problem(400, "the body is not a JSON object")
    messages, conversation = _messages(body) if protocol.messages else (_prompt(body), False)
    options = body.get("options") if protocol.ollama else body
    options = options if isinstance(options, dict) else {}
    streams = body.get("stream")
    model = body.get("model")
    return Asked(
        protocol,
        raw,
        body,
        model if isinstance(model, str) else "",
        messages,
        conversation,
        _whole(options.get("num_ctx")) if protocol.ollama else None,
        _whole(next((options[key] for key in LIMIT_KEYS[protocol.ollama] if key in options), None)),
        streams if isinstance(streams, bool) else protocol.streams,
    )


LIMIT_KEYS = {True: ("num_predict",), False: ("max_completion_tokens", "max_tokens")}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _messages(body: Mapping[str, Any]) -> tuple[tuple[Message, ...], bool]:
    sent = body.get("messages")
    if not isinstance(sent, list):
        return (), False
    readable = [m for m in sent if isinstance(m, dict)]
    return tuple(Message.from_wire(m) for m in readable), len(readable) == len(sent) > 0


def _prompt(body: Mapping[str, Any]) -> tuple[Message, ...]:
    """/api/generate as the messages it stands for; none where it only loads the model."""
    prompt, system = body.get("prompt"), body.get("system")
    if not isinstance(prompt, str) or not prompt:
        return ()
    head = [Message("system", system)] if isinstance(system, str) and system else []
    extra = {"images": body["images"]} if body.get("images") else {}
    return (*head, Message("user", prompt, extra=extra))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def kept_messages(asked: Asked, kept: Sequence[Message]) -> list[dict[str, Any]]:
    """`kept` as they came, without `pinned`; one that was joined of two is written anew."""
    came = {id(message): sent for message, sent in zip(asked.messages, asked.body["messages"], strict=True)}
    return [
        {key: value for key, value in came[id(m)].items() if key != "pinned"} if id(m) in came else m.to_wire()
        for m in kept
    ]
