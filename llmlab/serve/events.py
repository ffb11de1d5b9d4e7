"""The events of /chat, as they are sent and described."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Delta(_Event):
    """A piece of the answer; a piece is not a token."""

    delta: str


class Thought(_Event):
    """A piece of what the model thinks before it answers."""

    thinking: str


class WindowBar(_Event):
    """How the prompt fills the window, in estimated tokens.

    `num_ctx` = `system` + `pinned` + `kept` + `free`; `free` is negative where the prompt is longer than the window.
    """

    budget: bool = Field(description="Whether the conversation is kept inside the window.")
    num_ctx: int = Field(description="The window.")
    reserve: int = Field(description="How much of `free` is kept for the answer.")
    system: int
    pinned: int
    kept: int = Field(description="The turns that are sent and not pinned, template tokens included.")
    dropped: int = Field(description="What is not sent.")
    free: int


class Filling(_Event):
    """What would be sent."""

    window: WindowBar | None = Field(description="Null where nobody knows the window.")
    dropped: list[int] = Field(description="Which messages are left out: places among those that are not system.")


class Receipt(Filling):
    """`event: receipt`, after the first piece: what was sent."""

    model: str
    session: str | None


class Stats(_Event):
    """`event: stats`, the last one of an answer: what it cost. Durations in nanoseconds; null means not reported."""

    call: str = Field(description="The id of the row in the database.")
    prompt_tokens: int | None = Field(description="Tokens of the whole prompt that the model read.")
    cached_tokens: int | None
    output_tokens: int | None
    ttft_ns: int | None = Field(description="Time to first token: thinking or answer, whichever came first.")
    ttft_answer_ns: int | None
    tokens_per_s: float | None = Field(description="Decode speed; null for an answer too short to tell.")
    load_ns: int | None
    prefill_ns: int | None
    decode_ns: int | None
    total_ns: int | None
    done_reason: str | None
    dropped: int = Field(description="Messages left out by the budget.")
    cut: str | None = Field(description="Whether the server silently cut the prompt: no, suspected or proved.")
    cut_evidence: str | None
    tool_calls: list[dict[str, Any]]
    notes: list[str] = Field(description="Lines for people.")
    session: str | None
    messages: int = Field(description="Messages of the conversation by now, system messages not counted.")


class Failure(_Event):
    """`event: error`, the last one of an answer that failed after it had begun."""

    error: str
    hint: str | None
    status: int = Field(description="The HTTP status it would have had before the first event.")
    call: str | None


EVENTS: tuple[tuple[str | None, type[BaseModel]], ...] = (
    (None, Delta),
    (None, Thought),
    ("receipt", Receipt),
    ("stats", Stats),
    ("error", Failure),
)
"""Each event's name (None: a plain message) and the JSON in its data."""
