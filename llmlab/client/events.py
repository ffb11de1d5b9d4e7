"""What a wire reads out of a server's bytes: pieces of the answer, tool calls, the closing figures, a fault."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["content", "thinking"]

_TOO_LARGE = 2**63


class Piece(NamedTuple):
    """A part of the answer as it arrived; a piece is not a token. One is made for every token: a tuple is the least."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Calls of tools, in order, as the server wrote them; empty while a server still spells them out."""

    calls: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The answer is complete; None means not reported. Counts are tokens, durations the server's own nanoseconds.

    `odd` says that a figure was there but impossible (negative, not finite, over 2^63, not a number) and left out.
    """

    reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    total_ns: int | None = None
    load_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    odd: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """The server reported an error, or what came is not this wire's language; `hint` says what to do next."""

    what: str
    hint: str | None = None
    body: object = None


Event = Piece | ToolCalls | Done | Fault


class Figures:
    """Reads numbers out of a JSON object and notes whether one was impossible."""

    __slots__ = ("odd",)

    def __init__(self) -> None:
        self.odd = False

    def count(self, value: object) -> int | None:
        """A whole number from 0 to 2^63 − 1, else None."""
        return self.scaled(value, 1)

    def span(self, value: object, unit_ns: int = 1) -> int | None:
        """A duration in nanoseconds; zero is no measurement and therefore None."""
        return self.scaled(value, unit_ns) or None

    def scaled(self, value: object, factor: int) -> int | None:
        """`value` · `factor` as a whole number from 0 to 2^63 − 1, else None."""
        if value is None:
            return None
        # NaN fails every comparison, and a bool is an int to Python only.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value * factor < _TOO_LARGE:
            self.odd = True
            return None
        return int(value * factor)


def first_text(*values: object) -> str:
    """The first value that is a text with something in it, else an empty text."""
    for value in values:
        if value and isinstance(value, str):
            return value
    return ""
