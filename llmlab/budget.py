"""What fits into the window: which messages are sent, which are left out, and what is left for the answer."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llmlab.errors import Overflow, UsageError
from llmlab.messages import Message, join_same_role
from llmlab.tokens import CONVERSATION_TOKENS, Estimator, estimate_message

DEFAULT_NUM_CTX = 4096
DEFAULT_RESERVE = 512
LOW_MARK = 0.75
TOO_OLD = "older than the budget allows"
ALWAYS_KEPT = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Window:
    """A window of `num_ctx` tokens: `limit` of them may be filled by the prompt, `reserve` stay free for the answer.

    `notice` is one line for the user where a number that was given could not be taken as it was.
    """

    num_ctx: int
    reserve: int
    limit: int
    notice: str | None = None


def window_limit(
    num_ctx: int | None,
    *,
    model_context: int | None = None,
    refused_n_ctx: int | None = None,
    reserve: int | None = None,
    num_predict: int | None = None,
) -> Window:
    """The window to ask for and to budget against. Raises Overflow when nothing of it is left for a prompt.

    The window is the least of `num_ctx` (None: 4096, because it is always sent and a server's default never counts),
    the model's own maximum and the n_ctx that a refusal named. The reserve is the one said, else 512 or a quarter of a
    small window. A positive `num_predict` is planned with at most half of the window; it comes on top of a reserve that
    was said, and otherwise raises the reserve to it. Endless answers (−1, −2) reserve as much as unsaid ones.
    """
    if reserve is not None and reserve < 0:
        raise UsageError(f"a reserve of {reserve:,} tokens is not possible", "Give 0 or more")
    asked = DEFAULT_NUM_CTX if num_ctx is None else num_ctx
    window = min([asked, *(n for n in (model_context, refused_n_ctx) if n is not None and n > 0)])
    answer = max(0, min(num_predict or 0, window // 2))
    kept_free = max(min(DEFAULT_RESERVE, window // 4), answer) if reserve is None else reserve + answer
    if window - kept_free < 1:
        less = f" less the {kept_free:,} kept free for the answer" if kept_free else ""
        raise Overflow(
            f"a window of {window:,} tokens{less} leaves no room for a prompt",
            "Raise --num-ctx, or lower --reserve or the answer's length",
        )
    notice = None
    if num_predict is not None and num_predict > answer:
        notice = (
            f"an answer of {num_predict:,} tokens is more than half of the window of {window:,}: "
            f"{answer:,} are planned for it"
        )
    return Window(window, kept_free, window - kept_free, notice)


def num_predict_left(window: Window, used: int, asked: int | None = None) -> int:
    """The num_predict to send: what a prompt of `used` tokens leaves of the window, or `asked` if that is less.

    Never 0, which servers take for "no limit"; `asked` below 1 means an answer as long as the window allows.
    """
    left = max(1, window.num_ctx - used)
    return left if asked is None or asked < 1 else min(asked, left)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message that is not sent, why, and its tokens."""

    message: Message
    reason: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CutAt:
    """One cut: before the message at `index` of the history, `turns` went and `before` tokens became `after`."""

    index: int
    turns: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What is sent and what is not; all counts are calibrated tokens.

    `used` = `system_tokens` + `pinned_tokens` + `kept_tokens` (the other turns and the template around the prompt).
    `cuts` is how often the replay of the conversation had to cut so far, `last_cut` the newest of them; `cold` says
    that it falls on this very request, so that the server's cache cannot help.
    """

    kept: tuple[Message, ...]
    dropped: tuple[Dropped, ...]
    used: int
    limit: int
    cuts: int
    system_tokens: int = 0
    pinned_tokens: int = 0
    last_cut: CutAt | None = None
    cold: bool = False

    @property
    def kept_tokens(self) -> int:
        return self.used - self.system_tokens - self.pinned_tokens

    @property
    def dropped_tokens(self) -> int:
        return sum(d.tokens for d in self.dropped)

    @property
    def free_tokens(self) -> int:
        return self.limit - self.used

    @property
    def notice(self) -> str | None:
        """`dropped 9 turns, about 3,600 → 2,700 of 3,584 tokens` where this request is the one that cut."""
        if self.last_cut is None or not self.cold:
            return None
        cut = self.last_cut
        turns = "1 turn" if cut.turns == 1 else f"{cut.turns:,} turns"
        return f"dropped {turns}, about {cut.before:,} → {cut.after:,} of {self.limit:,} tokens"


def fit(messages: Sequence[Message], limit: int, estimator: Estimator | None = None) -> Fit:
    """Choose what of `messages` is sent within `limit` tokens. Raises Overflow where what must stay does not fit.

    System and pinned messages and the newest turn always stay, then the newest turns without a hole. The conversation
    is replayed from its start: wherever a message was sent and the total passed the limit, the oldest unpinned turns
    went until 75 % of it was left. So the choice depends on history, limit and estimator alone, and what is sent keeps
    its beginning, which the server has cached, for many turns. What comes to stand beside a message of the same role
    because of a cut is joined to it by a blank line; a conversation that fits is passed on as it is.
    """
    replay = _Replay(limit, estimator or Estimator())
    pins = _pins(messages)
    last = len(messages) - 1
    for index, message in enumerate(messages):
        replay.add(index, message, pins[index])
        # An answer is not sent by itself; it counts when the next message goes out.
        if message.role != "assistant" or index == last:
            replay.cut(index)
    return replay.result(messages, pins)


@dataclass(slots=True)
class _Turn:
    """The unpinned messages of a turn: positions in the history, and their uncalibrated tokens."""

    indices: list[int] = field(default_factory=list)
    estimate: int = 0


class _Replay:
    """The state of a conversation while it is replayed, in uncalibrated tokens."""

    def __init__(self, limit: int, estimator: Estimator) -> None:
        self.limit = limit
        self.estimator = estimator
        self.turns: deque[_Turn] = deque()
        self.estimates: list[int] = []
        self.total = CONVERSATION_TOKENS
        self.gone: list[int] = []
        self.cuts = 0
        self.last_cut: CutAt | None = None

    def add(self, index: int, message: Message, pinned: bool) -> None:
        estimate = estimate_message(message)
        self.estimates.append(estimate)
        self.total += estimate
        if message.role in ALWAYS_KEPT:
            return
        if message.role == "user" or not self.turns:
            self.turns.append(_Turn())
        if not pinned:
            self.turns[-1].indices.append(index)
            self.turns[-1].estimate += estimate

    def cut(self, index: int) -> None:
        """Drop the oldest turns but the current one, if the total passes the limit."""
        before = self.estimator.tokens(self.total)
        if before <= self.limit:
            return
        turns = 0
        while len(self.turns) > 1 and self.estimator.tokens(self.total) > LOW_MARK * self.limit:
            turn = self.turns.popleft()
            self.total -= turn.estimate
            self.gone += turn.indices
            turns += bool(turn.indices)
        if turns:
            self.cuts += 1
            self.last_cut = CutAt(index, turns, before, self.estimator.tokens(self.total))

    def result(self, messages: Sequence[Message], pins: Sequence[bool]) -> Fit:
        tokens = self.estimator.tokens
        system = sum(e for e, m in zip(self.estimates, messages, strict=True) if m.role in ALWAYS_KEPT)
        pinned = sum(e for e, pin in zip(self.estimates, pins, strict=True) if pin)
        kept, saved = self._kept(messages)
        used = tokens(self.total - saved) if kept else 0
        if used > self.limit or (kept and self.limit < 1):
            raise self._overflow(tokens(system), tokens(pinned - saved), used)
        answered = max((i for i, m in enumerate(messages[:-1]) if m.role == "assistant"), default=-1)
        return Fit(
            kept=tuple(kept),
            dropped=tuple(Dropped(messages[i], TOO_OLD, tokens(self.estimates[i])) for i in self.gone),
            used=used,
            limit=self.limit,
            cuts=self.cuts,
            system_tokens=tokens(system),
            pinned_tokens=tokens(pinned - saved),
            last_cut=self.last_cut,
            cold=self.last_cut is not None and self.last_cut.index > answered,
        )

    def _kept(self, messages: Sequence[Message]) -> tuple[list[Message], int]:
        """The messages to send, and the tokens that joining saves: always beside a pinned one, for only those stay
        in front of a gap."""
        gone = set(self.gone)
        kept: list[Message] = []
        saved = 0
        last_index = -1
        for index, message in enumerate(messages):
            if index in gone:
                continue
            joined = join_same_role([kept[-1], message]) if kept and index > last_index + 1 else []
            if len(joined) == 1:
                saved += estimate_message(kept[-1]) + self.estimates[index] - estimate_message(joined[0])
                kept[-1] = joined[0]
            else:
                kept.append(message)
            last_index = index
        return kept, saved

    def _overflow(self, system: int, pinned: int, used: int) -> Overflow:
        named = (("system", system), ("pinned", pinned), ("the newest turn", used - system - pinned))
        parts = " + ".join(f"{what} {n:,}" for what, n in named if n)
        return Overflow(
            f"{parts} = about {used:,} tokens do not fit into the {max(0, self.limit):,} that a prompt may have",
            "Nothing was sent. Raise --num-ctx, shorten the message, or unpin something",
        )


def _pins(messages: Sequence[Message]) -> list[bool]:
    """Which messages stay because of a pin; system messages, which stay anyway, are left out.

    A pin in a turn with tool results holds the whole turn: a result without its call, or a call without its result,
    is refused by strict templates.
    """
    pins = [m.pinned and m.role not in ALWAYS_KEPT for m in messages]
    for turn in _turn_indices(messages):
        if any(pins[i] for i in turn) and any(messages[i].role == "tool" for i in turn):
            for i in turn:
                pins[i] = True
    return pins


def _turn_indices(messages: Sequence[Message]) -> Iterator[list[int]]:
    """The positions of each turn's messages: a user message and all up to the next, system messages left out."""
    turn: list[int] = []
    for index, message in enumerate(messages):
        if message.role in ALWAYS_KEPT:
            continue
        if message.role == "user" and turn:
            yield turn
            turn = []
        turn.append(index)
    if turn:
        yield turn
