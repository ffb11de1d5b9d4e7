"""Whether a server silently cut a prompt: the judgement, without any request."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from llmlab.call import Call
from llmlab.tokens import RATIO_MAX, RATIO_MIN

OFF = 0.15
"""A calibrated estimate is believed within this."""

HALF_BAND = 0.02
"""A prompt too long by itself is cut to half of the window, and a few tokens of its beginning."""

LIKELY_TOO_LONG = 0.7
"""A refusal without counts is taken for one of length where the estimate passes this part of the window."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal that may be one of length: the tokens of the prompt and the window, where the server names them."""

    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


def refusal(error_body: object, http_status: int | None) -> Refused | None:
    """Read an error answer: JSON as parsed or as text, counts in it or in JSON inside its strings, or mere words.

    A count of the prompt is believed under any status. Without it only a 400 can be a refusal of length, and whether it
    is one `too_long` says by the estimate, never the wording. None: certainly something else.
    """
    counts = _counts(error_body) or Refused()
    return counts if counts.n_prompt_tokens is not None or http_status == 400 else None


def _counts(value: object, depth: int = 5) -> Refused | None:
    if depth == 0:
        return None
    if isinstance(value, str | bytes):
        return _counts(_json(value), depth - 1)
    if isinstance(value, Mapping):
        prompt, n_ctx = _count(value.get("n_prompt_tokens")), _count(value.get("n_ctx"))
        if prompt is not None or n_ctx is not None:
            return Refused(prompt, n_ctx)
        found = (_counts(inner, depth - 1) for inner in value.values() if isinstance(inner, str | Mapping))
        return next(filter(None, found), None)
    return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _json(text: str | bytes) -> object:
    """The JSON object in `text`, which may have words in front of it."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    start = text.find("{")
    if start < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return None


def too_long(refused: Refused, estimate: int, window: int) -> bool:
    """Whether a refusal is one of length: by its own counts, else where the calibrated estimate nears the window."""
    if refused.n_prompt_tokens is not None:
        return refused.n_prompt_tokens > min(window, refused.n_ctx or window)
    return estimate > LIKELY_TOO_LONG * window


def refused_evidence(refused: Refused) -> str:
    """What a refusal of the same request with `truncate: false` proves, in words for `cut_evidence`."""
    if refused.n_prompt_tokens is None or refused.n_ctx is None:
        return "refused with truncate: false"
    return f"refused with truncate: false: {refused.n_prompt_tokens:,} tokens for a window of {refused.n_ctx:,}"


def suspicion(call: Call, estimate: int, ratio_is_known: bool, window: int | None) -> str | None:
    """Why the prompt of `call` may have been cut, in words for `cut_evidence`; None without a reason.

    `estimate` is calibrated where `ratio_is_known`, `window` the smallest known. Only a count below the estimate is a
    reason: by over 15 % where the ratio is known, else by more than any tokenizer explains, or where the server read
    just half of the window or just the window. A prompt that cannot have reached the window has no reason to be cut.
    """
    read = call.prompt_tokens
    if not read or (window is not None and estimate * RATIO_MAX < window):
        return None
    evidence = f"read {read:,} of about {estimate:,} tokens"
    if read < estimate * (1 - OFF if ratio_is_known else RATIO_MIN):
        return evidence
    if window is not None and read < estimate * (1 - OFF):
        if is_half(call, window):
            return f"{evidence}, half of the window of {window:,}"
        if read >= window:
            return f"{evidence}, all of the window of {window:,}"
    return None


def is_half(call: Call, window: int | None) -> bool:
    """Whether the server read half of the window, within 2 % (of a very small one, within the 4 tokens it keeps)."""
    if call.prompt_tokens is None or window is None:
        return False
    return abs(call.prompt_tokens - window / 2) <= max(HALF_BAND * window / 2, 4)


def shrunk(previous: Call | None, call: Call, grew: bool) -> str | None:
    """Proof, in words for `cut_evidence`: a conversation that only grew since `previous` read fewer tokens.

    `grew` says that the messages of `call` are those of `previous` and more. Different models count differently.
    """
    if previous is None or not grew or previous.model_id != call.model_id:
        return None
    before, now = previous.prompt_tokens, call.prompt_tokens
    if not before or not now or now >= before:
        return None
    return f"the conversation grew, and the prompt read fell from {before:,} to {now:,} tokens"


def outgrew(call: Call, window: int | None) -> str | None:
    """The line for an answer that went on past the end of the window: its beginning was lost while it was written."""
    if window is None or call.prompt_tokens is None or call.output_tokens is None:
        return None
    total = call.prompt_tokens + call.output_tokens
    if total <= window + 1:  # the last token is written, not read
        return None
    return (
        f"prompt and answer took {total:,} tokens in a window of {window:,}: "
        "the model lost the oldest part while it answered"
    )


def line(call: Call, estimate: int, verdict: str) -> str:
    """What people read about a cut that is `proved` or `suspected`."""
    gone = "is gone" if verdict == "proved" else "may be gone"
    return (
        f"the model read {call.prompt_tokens or 0:,} of about {estimate:,} tokens: "
        f"the oldest part of this conversation {gone}"
    )
