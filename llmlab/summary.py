"""The summary of what a conversation drops, kept as one pinned message."""

from collections.abc import Awaitable, Callable, Sequence

from llmlab.messages import Message
from llmlab.tokens import Estimator

PREFIX = "Summary of the earlier part of our conversation: "
LONGEST_TOKENS = 160
INSTRUCTION = (
    "Summarise the conversation below in a few short sentences. Keep names, numbers, decisions and open questions. "
    "Write only the summary.\n\n"
)


async def summarise(
    gone: Sequence[Message], send: Callable[[Message, int], Awaitable[str]], estimator: Estimator, limit: int
) -> Message:
    """One pinned message that stands for `gone`.

    `send(question, num_predict)` asks the model and returns its text. What does not fit into `limit` tokens at once is
    summarised in parts, each with the summary so far in front. A summary takes at most a sixth of `limit`. Raises what
    `send` raises.
    """
    summary = ""
    longest = max(1, min(LONGEST_TOKENS, limit // 6))
    room = limit - longest - estimator.message(Message("user", INSTRUCTION + PREFIX))
    for part in _parts(gone, estimator, max(1, room)):
        before = f"{PREFIX}{summary}\n\n" if summary else ""
        talk = "\n".join(f"{m.role}: {m.content.removeprefix(PREFIX)}" for m in part)
        summary = (await send(Message("user", f"{INSTRUCTION}{before}{talk}"), longest)).strip() or summary
    return Message("user", PREFIX + summary, pinned=True)


def _parts(messages: Sequence[Message], estimator: Estimator, limit: int) -> list[list[Message]]:
    parts: list[list[Message]] = [[]]
    used = 0
    for message in messages:
        tokens = estimator.message(message)
        if parts[-1] and used + tokens > limit:
            parts.append([])
            used = 0
        parts[-1].append(message)
        used += tokens
    return parts
