"""Fitting: the budget for clients that know nothing of it."""

import json
from dataclasses import dataclass
from typing import Any

from llmlab import budget, cut
from llmlab.errors import LabError
from llmlab.messages import Message
from llmlab.serve.asked import LIMIT_KEYS, Asked, kept_messages
from llmlab.serve.ledger import Known, Ledger
from llmlab.tokens import Estimator


@dataclass(frozen=True, slots=True)
class Prepared:
    """What goes to the server: the bytes, the messages in them, and how they were fitted (None: they were not).

    `num_ctx` is the window that is asked for, `window` the smallest one known, in tokens; None where nobody says.
    """

    raw: bytes
    messages: tuple[Message, ...]
    num_ctx: int | None = None
    window: int | None = None
    fit: budget.Fit | None = None
    limits: budget.Window | None = None

    @property
    def dropped(self) -> int:
        return len(self.fit.dropped) if self.fit is not None else 0


def as_it_came(asked: Asked) -> Prepared:
    """The client's own bytes; only where a message carries `pinned`, which is ours, they are written anew."""
    if not asked.marked:
        return Prepared(asked.raw, asked.messages, asked.num_ctx, asked.num_ctx)
    sent = [
        {key: value for key, value in m.items() if key != "pinned"} if isinstance(m, dict) else m
        for m in asked.body["messages"]
    ]
    raw = _written({**asked.body, "messages": sent})
    return Prepared(raw, asked.messages, asked.num_ctx, asked.num_ctx)


class Fitting:
    """Prepares clients' requests. `on` fits their conversations where the window is known."""

    def __init__(self, ledger: Ledger, *, on: bool, num_ctx: int | None = None, reserve: int | None = None) -> None:
        self.ledger = ledger
        self.on = on
        self.num_ctx = num_ctx
        self.reserve = reserve

    async def prepare(self, asked: Asked) -> Prepared:
        """What to send for `asked`. Raises Overflow where it cannot fit."""
        if not self.on or not asked.conversation:
            return as_it_came(asked)
        try:
            known = await self.ledger.known(asked.model)
            window = await self._window(asked, known)
        except LabError:
            # The server will say itself what is wrong with this request.
            return as_it_came(asked)
        if window is None:
            return as_it_came(asked)
        return self._fit(asked, known, window, known.estimator)

    def _num_ctx(self, asked: Asked) -> int | None:
        """The window to ask for: the client's, else the one llmlab was started with; the OpenAI wire has none."""
        return (asked.num_ctx or self.num_ctx) if asked.protocol.ollama else None

    async def _window(self, asked: Asked, known: Known) -> int | None:
        """The smallest window known: what is asked for, or what the server really gave for that."""
        num_ctx = self._num_ctx(asked)
        if num_ctx is None:
            return await self.ledger.window(known) or self.num_ctx
        loaded = known.windows.get(num_ctx)
        return num_ctx if loaded is None or loaded.tokens is None else min(num_ctx, loaded.tokens)

    async def again(self, asked: Asked, sent: Prepared, status: int, body: bytes) -> Prepared | None:
        """What to send after a refusal of `sent`: less of it, where its length was the reason; None otherwise."""
        if sent.fit is None or sent.limits is None or sent.window is None:
            return None
        refused = cut.refusal(body, status)
        if refused is None or not cut.too_long(refused, sent.fit.used, sent.limits.num_ctx):
            return None
        known = await self.ledger.known(asked.model)
        ratio = known.estimator.ratio
        if refused.n_prompt_tokens is not None:
            ratio = max(ratio, min(3.0, ratio * refused.n_prompt_tokens / max(1, sent.fit.used) * 1.02))
        else:
            ratio = min(3.0, ratio / 0.8)
        return self._fit(asked, known, min(sent.window, refused.n_ctx or sent.window), Estimator(ratio))

    def _fit(self, asked: Asked, known: Known, window: int, estimator: Estimator) -> Prepared:
        limits = budget.window_limit(
            window,
            model_context=known.model.context_length,
            reserve=self.reserve,
            num_predict=asked.num_predict,
        )
        fit = budget.fit(asked.messages, limits.limit, estimator)
        body: dict[str, Any] = {**asked.body, "messages": kept_messages(asked, fit.kept)}
        left = budget.num_predict_left(limits, fit.used, asked.num_predict)
        if asked.protocol.ollama:
            options = body.get("options") if isinstance(body.get("options"), dict) else {}
            said = {} if (num_ctx := self._num_ctx(asked)) is None else {"num_ctx": num_ctx}
            body["options"] = {**(options or {}), **said, "num_predict": left}
            body["truncate"] = False
        else:
            keys = LIMIT_KEYS[False]
            body[next((key for key in keys if key in body), keys[-1])] = left
        return Prepared(_written(body), fit.kept, self._num_ctx(asked), window, fit, limits)


def _written(body: dict[str, Any]) -> bytes:
    """JSON in ASCII: half a surrogate pair stays the escape it was."""
    return json.dumps(body, separators=(",", ":")).encode()
