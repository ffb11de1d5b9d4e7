"""Anchors: the same small cold call at several moments of a run; their slope is its drift, their spread its noise."""

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import median

from llmlab.call import Call, has_flag

DRIFT_CAUTION = 0.10
"""A run that became slower or faster by more than this fraction is marked, if its noise does not explain it."""


def drift_fraction(calls: Sequence[Call]) -> float | None:
    """How much slower (positive) or faster the run's anchors became from first to last, as a fraction of their median.

    The median of all pairwise slopes (Theil–Sen) times the number of steps, of the wait and of the time per output
    token; the larger of the two counts. None with fewer than three anchors.
    """
    drifts = [_slope(times) * (len(times) - 1) / median(times) for times in _series(calls)]
    return max(drifts, key=abs, default=None)


def is_drifting(calls: Sequence[Call]) -> bool:
    """Whether the drift is over 10 % and larger than what the anchors scatter around it."""
    return any(_drifts(times) for times in _series(calls))


def noise_floor(calls: Sequence[Call]) -> float | None:
    """The spread of the run's anchors, (max − min) ÷ median, of the wait or the time per token, whichever is larger.

    None with fewer than three anchors.
    """
    return max(((max(times) - min(times)) / median(times) for times in _series(calls)), default=None)


def _drifts(times: Sequence[float]) -> bool:
    slope = _slope(times)
    straight = [time - slope * index for index, time in enumerate(times)]
    drift = abs(slope) * (len(times) - 1)
    return drift > DRIFT_CAUTION * median(times) and drift > max(straight) - min(straight)


def _series(calls: Sequence[Call]) -> list[list[float]]:
    """The anchors' waits and times per output token in the order of the run, each if there are at least three."""
    anchors = [c for c in calls if c.purpose == "anchor" and c.outcome == "ok" and not has_flag(c, "reloaded")]
    anchors.sort(key=lambda c: (c.seq or 0, c.started_utc, c.id))  # a clock may be set back in mid-run
    found = [_values(anchors, _wait_ns), _values(anchors, _ns_per_token)]
    return [times for times in found if len(times) >= 3]


def _values(anchors: Sequence[Call], value: Callable[[Call], float | None]) -> list[float]:
    return [v for v in map(value, anchors) if v is not None and v > 0]


def _wait_ns(call: Call) -> float | None:
    return None if call.ttft_ns is None else call.ttft_ns - (call.load_ns or 0)


def _ns_per_token(call: Call) -> float | None:
    speed = call.decode_tokens_per_s or call.user_tokens_per_s
    return 1e9 / speed if speed else None


def _slope(times: Sequence[float]) -> float:
    return median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(times), 2))
