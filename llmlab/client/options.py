"""What a chat is asked with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How one chat is asked; None means not sent.

    `num_ctx` the window and `num_predict` the most output tokens (both in tokens; num_predict 0 would mean "no limit"
    and is never sent); `options` model options such as temperature and seed; `think` and `keep_alive` as Ollama takes
    them; `truncate` False asks Ollama to refuse a prompt that does not fit; `extra` further top-level keys such as
    tools and format.
    """

    model: str
    num_ctx: int | None = None
    num_predict: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    think: bool | str | None = None
    keep_alive: int | str | None = None
    truncate: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
