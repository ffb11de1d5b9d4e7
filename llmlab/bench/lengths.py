"""Lengths: how many characters of the bench's prose make a prompt of so many tokens on this model."""

from statistics import linear_regression

DEFAULT = (16.0, 0.22)
"""Tokens of an empty prompt and tokens per character, until the server has counted something."""


class Lengths:
    """tokens = a + b · characters, learnt from what the server counted; characters are those of all messages."""

    def __init__(self) -> None:
        self.points: dict[int, int] = {}

    def learn(self, chars: int, tokens: int | None) -> None:
        """Add one counted, uncut prompt."""
        if tokens:
            self.points[chars] = tokens

    @property
    def known(self) -> bool:
        return len(self.points) >= 2

    def line(self) -> tuple[float, float]:
        """a and b; a guess of b where only one prompt or none was counted."""
        if self.known:
            slope, intercept = linear_regression(list(self.points), list(self.points.values()))
            if slope > 0:
                return intercept, slope
        a, b = DEFAULT
        for chars, tokens in self.points.items():
            b = max(0.05, (tokens - a) / chars)
        return a, b

    def tokens(self, chars: int) -> float:
        a, b = self.line()
        return max(1.0, a + b * chars)

    def chars(self, tokens: int) -> int:
        """Characters of a prompt of `tokens` tokens."""
        a, b = self.line()
        return max(0, round((tokens - a) / b))
