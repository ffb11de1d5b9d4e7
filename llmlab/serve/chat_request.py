"""What may be asked of /chat, and how a request that cannot be used is refused."""

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llmlab.messages import Message
from llmlab.serve.problem import Problem

MOST_MESSAGES = 100_000
LARGEST_WINDOW = 16_777_216
SET_APART = ("num_ctx", "num_predict")

Text = Annotated[str, Field(min_length=1)]
OptionValue = bool | int | float | str | list[str] | None


class _Strict(BaseModel):
    """A misspelt key is an error, and a number is no text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ChatMessage(_Strict):
    """One message of a conversation; a pinned one is never dropped by the budget."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    pinned: bool = False


class ChatRequest(_Strict):
    """A question: either `message`, or the whole conversation as `messages`, whose last one is the user's."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"message": "What is a KV cache?"},
                {"message": "And why does it help?", "session": "me", "pinned": True},
                {"messages": [{"role": "user", "content": "Hello!"}], "num_ctx": 2048},
            ],
            "oneOf": [
                {"required": ["message"], "properties": {"message": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ],
        }
    )

    message: Text | None = Field(None, description="The next question.")
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)] | None = Field(
        None, description="The whole conversation, oldest first; with a session it replaces what the server remembers."
    )
    session: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")] | None = Field(
        None, description="A name for this conversation; the server remembers it for an hour after its last use."
    )
    system: str | None = Field(None, description="The system message; it is always kept.")
    pinned: bool = Field(False, description="Pin this question and its answer, so that the budget never drops them.")
    model: Text | None = Field(None, description="A model the server has; without it the one that llmlab chose.")
    num_ctx: Annotated[int, Field(ge=1, le=LARGEST_WINDOW)] | None = Field(
        None, description="The context window, in tokens."
    )
    num_predict: Annotated[int, Field(ge=1, le=LARGEST_WINDOW)] | None = Field(
        None, description="The longest answer, in tokens."
    )
    options: dict[str, OptionValue] = Field(default_factory=dict, description="Model options such as temperature.")
    think: bool | Literal["low", "medium", "high"] | None = Field(None, description="Whether the model should think.")
    budget: bool | None = Field(
        None,
        description="Keep the conversation inside the window; without it as llmlab was started.",
    )

    @model_validator(mode="after")
    def _one_question(self) -> "ChatRequest":
        if (self.message is None) == (self.messages is None):
            raise ValueError("give either message or messages")
        if self.messages is not None and (self.messages[-1].role != "user" or not self.messages[-1].content):
            raise ValueError("the last of messages must be the user's and say something")
        apart = [key for key in SET_APART if key in self.options]
        if apart:
            raise ValueError(f"{apart[0]} is a field of its own, not one of options")
        return self

    @property
    def question(self) -> Message:
        """The newest message of the user."""
        if self.messages is None:
            return Message("user", self.message or "", self.pinned)
        last = self.messages[-1]
        return Message("user", last.content, last.pinned or self.pinned)

    @property
    def history(self) -> list[Message] | None:
        """The messages before the question; None where the request does not carry them."""
        if self.messages is None:
            return None
        return [Message(m.role, m.content, m.pinned) for m in self.messages[:-1]]


def read_chat_request(raw: bytes) -> ChatRequest | Problem:
    """The request in `raw`, or a 422 that names the field that cannot be used."""
    try:
        data = json.loads(raw, parse_constant=_no_constant)
        odd = _find_odd(data)
    except RecursionError:
        return _unusable([{"loc": ["body"], "msg": "nested too deeply", "type": "json_invalid"}])
    except ValueError as error:
        reason = str(error) if str(error).isprintable() else "it cannot be read"
        return _unusable([{"loc": ["body"], "msg": f"not JSON: {reason}", "type": "json_invalid"}])
    if odd is not None:
        return _unusable([odd])
    try:
        return ChatRequest.model_validate(data)
    except ValidationError as error:
        return _unusable(
            [
                {"loc": ["body", *(_shown(part) for part in found["loc"])], "msg": found["msg"], "type": found["type"]}
                for found in error.errors(include_url=False, include_input=False, include_context=False)[:20]
            ]
        )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _find_odd(value: Any, loc: tuple[str | int, ...] = ("body",)) -> dict[str, Any] | None:
    """The first text that holds half of a surrogate pair, or number without an end: neither can be sent on."""
    if isinstance(value, str):
        if _is_whole(value):
            return None
        return {"loc": list(loc), "msg": "the text holds half of a surrogate pair", "type": "string_unicode"}
    if isinstance(value, float):
        if math.isfinite(value):
            return None
        return {"loc": list(loc), "msg": "the number is too large", "type": "finite_number"}
    items: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        if isinstance(key, str) and not _is_whole(key):
            return {"loc": list(loc), "msg": "a key holds half of a surrogate pair", "type": "string_unicode"}
        found = _find_odd(inner, (*loc, key))
        if found is not None:
            return found
    return None


def _is_whole(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(part: str | int) -> str | int:
    """A part of a field's place; a client may have made it as long as it likes."""
    return part if isinstance(part, int) else part[:80]


def _unusable(detail: list[dict[str, Any]]) -> Problem:
    first = detail[0]
    place = ".".join(str(part) for part in first["loc"][1:]) or "the body"
    what = f"{place}: {first['msg']}"
    return Problem(422, what, "The fields are described at /openapi.json", detail)
