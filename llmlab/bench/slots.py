"""Slots: how many answers a server really gives at once, read off the answers' own times."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from llmlab.call import Call, has_flag
from llmlab.figures import format_speed

OVERLAP = 0.10
"""So much of the median answer's decode time must have had k answers in it before k counts."""
SHARED = 0.85
"""Users that run at once below this fraction of one user's speed share the machine."""


@dataclass(frozen=True, slots=True)
class Slots:
    """`count` answers ran at once; `at_least` where no more users asked than that."""

    count: int
    at_least: bool

    def __str__(self) -> str:
        return f"≥ {self.count}" if self.at_least else str(self.count)


def burst_slots(burst: Sequence[Call]) -> Slots | None:
    """The largest k for which k answers were between first and last content piece at once for over 10 % of the median
    answer's decode time; None where no answer has times.

    All users of a burst start together, so their times have one origin.
    """
    spans = [span for call in burst if call.outcome == "ok" and (span := answer_span_ns(call))]
    if not spans:
        return None
    enough_ns = OVERLAP * median(end - start for start, end in spans)
    count = max((k for k in range(1, len(spans) + 1) if overlap_ns(spans, k) > enough_ns), default=1)
    return Slots(count, count == len(burst))


def run_slots(bursts: Iterable[Sequence[Call]]) -> Slots | None:
    """The slots seen by the bursts with the most users, the median of them where they differ."""
    seen = [(len(burst), slots) for burst in bursts if (slots := burst_slots(burst))]
    most = max((size for size, _ in seen), default=0)
    found = sorted((slots for size, slots in seen if size == most), key=lambda slots: slots.count)
    return found[len(found) // 2] if found else None


def answer_span_ns(call: Call) -> tuple[int, int] | None:
    """First and last content piece, after the barrier.

    An answer that came in one piece, as through a relay that collects, was being decoded before it came: its span is
    what the server says it took.
    """
    first = call.ttft_ns if call.ttft_answer_ns is None else call.ttft_answer_ns
    if first is None or call.last_piece_ns is None:
        return None
    connect = call.connect_ns or 0
    last = call.last_piece_ns
    if call.decode_ns and (call.pieces <= 1 or has_flag(call, "buffered")):
        first = last - call.decode_ns
    return connect + first, connect + last


def overlap_ns(spans: Sequence[tuple[int, int]], k: int) -> int:
    """How long at least `k` of the spans ran at once."""
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running, total, before = 0, 0, 0
    for moment, step in moments:
        if running >= k:
            total += moment - before
        running, before = running + step, moment
    return total


def verdict(slots: Slots, alone: float | None, together: float | None, users: int) -> str:
    """Queueing told from sharing; `alone` and `together` are the tokens/s one user sees alone and in the burst."""
    if slots.count == 1 and users > 1:
        return f"answers were served one at a time: {users - 1} of {users} users queued"
    queued = "" if slots.at_least else f"; the other {users - slots.count} queued"
    if not alone or not together:
        return f"{slots} answers ran at once{queued}"
    if together < SHARED * alone:
        speeds = f"{format_speed(alone)} alone, {format_speed(together)} each"
        return f"{slots} answers ran at once and shared the machine, {speeds}{queued}"
    return f"{slots} answers ran at once at nearly full speed each{queued}"
