"""Verdict: whether a value changes in the same way in two runs, whatever its size."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmlab.figures import Figure

TOLERANCE = 0.25
"""Relative values closer than this are the same; noisier runs need more."""
ENOUGH = 3
"""From this many samples on, ranges that do not touch prove a difference."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is `same shape`, `differs`, `can't tell` or `not comparable`; `n` the fewest samples it rests on."""

    word: str
    n: int | None = None

    def __str__(self) -> str:
        shown = self.n is not None and self.word in ("differs", "can't tell")
        return f"{self.word} (n = {self.n})" if shown else self.word


NOT_COMPARABLE = Verdict("not comparable")
SAME = Verdict("same shape")


def tolerance(noise_a: float | None, noise_b: float | None) -> float:
    """How far apart relative values may be: 25 %, or twice the larger noise floor."""
    return max(TOLERANCE, 2 * max(noise_a or 0, noise_b or 0))


def compare_series(pairs: Sequence[tuple[Figure, Figure]], t: float) -> Verdict:
    """The verdict on two series, given as the pairs of their comparable points, of which the first is the base.

    With q = (xᵢ/x₁ of A) ÷ (xᵢ/x₁ of B): all within t → same shape; any outside t with at least three samples and
    ranges apart, or outside 2t whatever n → differs; else it cannot be told. Fewer than two points: not comparable.
    """
    if len(pairs) < 2:
        return NOT_COMPARABLE
    base, outside = pairs[0], []
    for pair in pairs[1:]:
        q = (pair[0].median / base[0].median) / (pair[1].median / base[1].median)
        n = min(figure.n for figure in (*base, *pair))
        if _outside(q, 2 * t) or (_outside(q, t) and n >= ENOUGH and _apart(base, pair)):
            return Verdict("differs", n)
        if _outside(q, t):
            outside.append(n)
    return Verdict("can't tell", min(outside)) if outside else SAME


def _outside(q: float, t: float) -> bool:
    return not 1 / (1 + t) <= q <= 1 + t


def _apart(base: tuple[Figure, Figure], pair: tuple[Figure, Figure]) -> bool:
    """Whether the ranges of xᵢ/x₁, from lowest ÷ highest to highest ÷ lowest, do not touch."""
    (low_a, high_a), (low_b, high_b) = (_ratio_range(x1, xi) for x1, xi in zip(base, pair, strict=True))
    return high_a < low_b or high_b < low_a


def _ratio_range(x1: Figure, xi: Figure) -> tuple[float, float]:
    return xi.min / x1.max, xi.max / x1.min if x1.min > 0 else float("inf")
