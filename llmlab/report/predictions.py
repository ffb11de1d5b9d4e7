"""Predictions: what the measured medians say a person will wait."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmlab.report.shape import prompt_points
from llmlab.report.side import Side

PASTES_TOKENS = (100, 250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000)
"""Of these, the three longest that the runs can answer for, and the first that they cannot."""
PATIENCE_NS = 5e9
WORST_NS = 10e9
REACH = 1.5
"""Nothing is said of prompts longer than this times the longest one measured."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Guess:
    """One predicted number; `bound` is `=`, `<`, `>`, or `?` for beyond what was measured, where `value` is None."""

    value: float | None
    bound: str = "="


BEYOND = Guess(None, "?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`name` is `paste_wait_ns` (of `tokens`), `largest_paste_tokens` (within 5 s) or `users_within_10_s` (the worst
    TTFT); one guess per side, None where the run did not measure it."""

    name: str
    tokens: int | None = None
    guesses: tuple[Guess | None, ...]


def predictions(sides: Sequence[Side]) -> list[Prediction]:
    """The predictions that at least one run allows."""
    prompts = [prompt_points(side) for side in sides]
    crowds = [_crowd_points(side) for side in sides]
    found = [
        *(
            Prediction(name="paste_wait_ns", tokens=tokens, guesses=tuple(_wait(p, tokens) for p in prompts))
            for tokens in _pastes(prompts)
        ),
        Prediction(name="largest_paste_tokens", guesses=tuple(_largest(p, PATIENCE_NS, REACH) for p in prompts)),
        Prediction(name="users_within_10_s", guesses=tuple(_most_users(p) for p in crowds)),
    ]
    return [p for p in found if any(p.guesses)]


def _pastes(prompts: Sequence[Points]) -> list[int]:
    reach = max((REACH * points[-1][0] for points in prompts if points), default=0)
    within = [tokens for tokens in PASTES_TOKENS if tokens <= reach]
    return [*within[-3:], *PASTES_TOKENS[len(within) :][:1]]


def _crowd_points(side: Side) -> list[tuple[float, float]]:
    return sorted(
        (cell.size, worst_ns)
        for cell in side.cells.values()
        if cell.experiment == "users" and cell.size and (worst_ns := cell.median("ttft_worst_ns")) is not None
    )


def _wait(points: Points, tokens: int) -> Guess | None:
    if len(points) < 2:
        return None
    return BEYOND if tokens > REACH * points[-1][0] else Guess(_interpolate(points, tokens))


def _interpolate(points: Points, x: float) -> float:
    """The value at `x` on the line through the two points around it, or the nearest two; never below 0."""
    (x1, y1), (x2, y2) = next(((a, b) for a, b in pairwise(points) if x <= b[0]), (points[-2], points[-1]))
    return max(0.0, y1 + (y2 - y1) * (x - x1) / (x2 - x1))


def _largest(points: Points, limit_ns: float, reach: float) -> Guess | None:
    """The largest x up to which the value stays within `limit_ns`, up to `reach` times the last x."""
    if len(points) < 2:
        return None
    if points[0][1] > limit_ns:
        return Guess(points[0][0], "<")
    end = points[-1][0] * reach
    steps = [*points, (end, _interpolate(points, end))] if reach > 1 else points
    for (x1, y1), (x2, y2) in pairwise(steps):
        if y2 > limit_ns:
            return Guess(x1 + (x2 - x1) * (limit_ns - y1) / (y2 - y1))
    return Guess(steps[-1][0], ">")


def _most_users(points: Points) -> Guess | None:
    """The most users whose last one still waits no longer than 10 s."""
    guess = _largest(points, WORST_NS, 1)
    return Guess(guess.value // 1, guess.bound) if guess and guess.value is not None else guess
