"""The window as a bar: how a conversation fills it."""

from llmlab.budget import ALWAYS_KEPT, Fit
from llmlab.conversation import Conversation
from llmlab.messages import Message
from llmlab.serve.events import WindowBar
from llmlab.tokens import CONVERSATION_TOKENS, estimate_message


def window_bar(conversation: Conversation, fit: Fit | None, question: Message) -> WindowBar | None:
    """Estimated tokens of each part of the window; None where nobody knows the window.

    With the budget these are the parts of `fit`; without it everything is sent, and the server decides what is lost.
    """
    if fit is not None and (window := conversation.window) is not None:
        return WindowBar(
            budget=True,
            num_ctx=window.num_ctx,
            reserve=window.reserve,
            system=fit.system_tokens,
            pinned=fit.pinned_tokens,
            kept=fit.kept_tokens,
            dropped=fit.dropped_tokens,
            free=window.num_ctx - fit.used,
        )
    num_ctx = conversation.num_ctx_loaded or conversation.policy.window
    if num_ctx is None:
        return None
    sums = {"system": 0, "pinned": 0, "kept": CONVERSATION_TOKENS}
    for message in [*conversation.messages, question]:
        part = "system" if message.role in ALWAYS_KEPT else "pinned" if message.pinned else "kept"
        sums[part] += estimate_message(message)
    tokens = {part: conversation.estimator.tokens(n) for part, n in sums.items()}
    free = num_ctx - sum(tokens.values())
    return WindowBar(budget=False, num_ctx=num_ctx, reserve=0, **tokens, dropped=0, free=free)


def dropped_places(conversation: Conversation, fit: Fit | None) -> list[int]:
    """Where the dropped messages stand among those that are not system messages."""
    gone = {id(d.message) for d in fit.dropped} if fit is not None else set()
    spoken = [m for m in conversation.messages if m.role != "system"]
    return [place for place, message in enumerate(spoken) if id(message) in gone]
