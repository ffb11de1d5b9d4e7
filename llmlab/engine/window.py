"""The window: how large it really is, and what of a conversation is left when it does not fit."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

STEP_TOKENS = 256
KEPT_AT_FRONT = 4

Wire = dict[str, Any]


def padded(num_ctx: int, model_tokens: int | None) -> int:
    """The window that is loaded for `num_ctx`: rounded up to 256 tokens, at most what the model was made for."""
    asked = max(1, num_ctx)
    if model_tokens:
        asked = min(asked, model_tokens)
    return -(-asked // STEP_TOKENS) * STEP_TOKENS


def without(messages: Sequence[Wire], dropped: int) -> list[Wire]:
    """`messages` without the first `dropped` of them, save system messages."""
    return [m for m in messages[:dropped] if m["role"] == "system"] + list(messages[dropped:])


async def fit(
    messages: Sequence[Wire], n_ctx: int, count: Callable[[list[Wire]], Awaitable[int]]
) -> tuple[list[Wire], int]:
    """Drop whole messages from the front until `count` is below `n_ctx`, as Ollama does.

    System messages and the last message always stay. Returns what is left and its tokens, which can still be too many.
    """
    low, high = 1, len(messages) - 1
    while low < high:
        middle = (low + high) // 2
        if await count(without(messages, middle)) < n_ctx:
            high = middle
        else:
            low = middle + 1
    kept = without(messages, max(0, high))
    return kept, await count(kept)


def half(tokens: Sequence[int], n_ctx: int, keep: int) -> list[int]:
    """The first `keep` tokens and the last half of the rest of the window: 258 of 1,327 into 512."""
    keep = max(0, min(keep, n_ctx - STEP_TOKENS // 2))
    return [*tokens[:keep], *tokens[len(tokens) - (n_ctx - keep) // 2 :]]
