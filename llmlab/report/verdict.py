"""Verdict: whether a value changes in the same way in two runs, whatever its size."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmlab.figures import Figure

TOLERANCE = 0.25
"""Relative values closer than this are the same; noisier runs need more."""
ENOUGH = 3
"""From this many samples on, ranges that do not touch prove a difference."""
MANY = 5
"""The range of fewer samples than this is too narrow by chance: it is widened by the noise floor."""


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


def tolerance(noise: float) -> float:
    """How far apart relative values may be: 25 %, or twice the noise floor."""
    return max(TOLERANCE, 2 * noise)


def compare_series(pairs: Sequence[tuple[Figure, Figure]], noise: float) -> Verdict:
    """The verdict on two series, given as the pairs of their comparable points, of which the first is the base.

    With q = (xᵢ/x₁ of A) ÷ (xᵢ/x₁ of B) and t the tolerance at the larger noise floor of the two runs: all within t →
    same shape; any outside t with at least three samples and ranges apart, or outside 2t whatever n → differs; else it
    cannot be told. Fewer than two points: not comparable.
    """
    t = tolerance(noise)
    if len(pairs) < 2:
        return NOT_COMPARABLE
    base, outside = pairs[0], []
    for pair in pairs[1:]:
        q = (pair[0].median / base[0].median) / (pair[1].median / base[1].median)
        n = min(figure.n for figure in (*base, *pair))
        if _outside(q, 2 * t) or (_outside(q, t) and n >= ENOUGH and _apart(base, pair, noise)):
            return Verdict("differs", n)
        if _outside(q, t):
            outside.append(n)
    return Verdict("can't tell", min(outside)) if outside else SAME


def _outside(q: float, t: float) -> bool:
    return not 1 / (1 + t) <= q <= 1 + t


def _apart(base: tuple[Figure, Figure], pair: tuple[Figure, Figure], noise: float) -> bool:
    """Whether the ranges of xᵢ/x₁, from lowest ÷ highest to highest ÷ lowest, do not touch."""
    (low_a, high_a), (low_b, high_b) = (_ratio_range(x1, xi, noise) for x1, xi in zip(base, pair, strict=True))
    return high_a < low_b or high_b < low_a


def _ratio_range(x1: Figure, xi: Figure, noise: float) -> tuple[float, float]:
    (low_1, high_1), (low_i, high_i) = _range(x1, noise), _range(xi, noise)
    return low_i / high_1, high_i / low_1 if low_1 > 0 else float("inf")


def _range(figure: Figure, noise: float) -> tuple[float, float]:
    slack = 1 if figure.n >= MANY else 1 + noise
    return figure.min / slack, figure.max * slack
