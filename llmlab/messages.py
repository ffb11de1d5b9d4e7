"""Messages of a conversation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    `pinned` is ours and never sent. `extra` holds every further key of the wire form (images, tool_calls, tool_name, …)
    untouched. Thinking of earlier answers is neither kept here nor sent.
    """

    role: str
    content: str
    pinned: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> "Message":
        """Read one entry of a `messages` list; content that is not a string (OpenAI parts, null) stays in `extra`."""
        extra = {k: v for k, v in data.items() if k not in ("role", "content", "pinned", "thinking")}
        content = data.get("content")
        if not isinstance(content, str):
            if content is not None:
                extra["content"] = content
            content = ""
        return cls(str(data.get("role", "")), content, data.get("pinned") is True, extra)

    def to_wire(self) -> dict[str, Any]:
        """The form both wires send."""
        return {"role": self.role, "content": self.content, **self.extra}

    def pin(self, pinned: bool = True) -> "Message":
        return replace(self, pinned=pinned)


def join_same_role(messages: Iterable[Message]) -> list[Message]:
    """Join neighbours of one role (user or assistant) by a blank line: strict templates refuse two in a row."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last and last.role == message.role in ("user", "assistant") and not last.extra and not message.extra:
            joined[-1] = replace(
                last, content=f"{last.content}\n\n{message.content}", pinned=last.pinned or message.pinned
            )
        else:
            joined.append(message)
    return joined
