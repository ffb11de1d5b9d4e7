"""Shape: how a run's figures change when the prompt grows or users are added, which machines may share or not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmlab.cells import Cell
from llmlab.figures import Figure, ratio
from llmlab.findings import ceiling, reuse, warm_share
from llmlab.report.facts import Mark
from llmlab.report.rows import Row, experiment_rows
from llmlab.report.side import Side, larger_noise
from llmlab.report.verdict import NOT_COMPARABLE, SAME, Verdict, compare_series

RESOLUTION_NS = 5e6
"""Waits are known to 5 ms: what a busy computer takes to notice that something has arrived."""
SERIES = {
    "prompt_length": ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s"),
    "users": ("ttft_ns", "ttft_worst_ns", "user_tokens_per_s", "total_tokens_per_s"),
}
"""The figures whose change from row to row is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One figure over the sizes of one experiment.

    `relative` has one list per side: each value ÷ the side's first one, None where it is missing. `verdicts` has one
    per side, against the first side, whose own is None.
    """

    experiment: str
    figure: str
    sizes: tuple[int | None, ...]
    relative: tuple[tuple[float | None, ...], ...]
    verdicts: tuple[Verdict | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """One number that describes a run; `name` has its unit. `verdicts` as in `Series`."""

    name: str
    values: tuple[float | None, ...]
    verdicts: tuple[Verdict | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    series: tuple[Series, ...]
    traits: tuple[Trait, ...]


def decode_figure(sides: Sequence[Side]) -> str:
    """The decode speed that all runs have: the server's own, else the one the user sees."""
    has_own = all(any(c.figures.get("decode_tokens_per_s") for c in _of(side, "prompt_length")) for side in sides)
    return "decode_tokens_per_s" if has_own else "user_tokens_per_s"


def shape(sides: Sequence[Side], rows: Sequence[Row]) -> Shape:
    """The shape of every run, each compared with the first."""
    by_experiment = experiment_rows(rows)
    decode = decode_figure(sides)
    series = [
        _series(sides, by_experiment[experiment], experiment, figure.replace("decode_tokens_per_s", decode))
        for experiment, figures in SERIES.items()
        if experiment in by_experiment
        for figure in figures
    ]
    return Shape(series=tuple(s for s in series if _is_there(s)), traits=tuple(_traits(sides, rows)))


def _is_there(series: Series) -> bool:
    return any(sum(v is not None for v in values) > 1 for values in series.relative)


def _series(sides: Sequence[Side], rows: Sequence[Row], experiment: str, figure: str) -> Series:
    rows = [row for row in rows if row.key[1] is None]
    first = sides[0]
    return Series(
        experiment=experiment,
        figure=figure,
        sizes=tuple(row.key[2] for row in rows),
        relative=tuple(_relative([row.values(figure)[i] for row in rows]) for i in range(len(sides))),
        verdicts=(
            None,
            *(
                _verdict(_pairs(rows, i, figure), figure, larger_noise(first, side))
                for i, side in enumerate(sides[1:], start=1)
            ),
        ),
    )


def _verdict(pairs: Sequence[tuple[Figure, Figure]], figure: str, noise: float) -> Verdict:
    """The verdict on one figure; of waits so short that the clock's own error counts, less is expected."""
    if pairs and figure.endswith("_ns"):
        noise = max(noise, RESOLUTION_NS / min(f.median for f in pairs[0]))
    return compare_series(pairs, noise)


def _relative(values: Sequence[float | None]) -> tuple[float | None, ...]:
    first = next((v for v in values if v), None)
    return tuple(ratio(v, first) for v in values)


def _pairs(rows: Sequence[Row], other: int, figure: str) -> list[tuple[Figure, Figure]]:
    """The points of the first side and another that may be compared and can be divided."""
    found = []
    for row in rows:
        a, b = (cell.figures.get(figure) if cell else None for cell in (row.cells[0], row.cells[other]))
        if row.mark is not Mark.no and a and b and a.median > 0 and b.median > 0:
            found.append((a, b))
    return found


def _traits(sides: Sequence[Side], rows: Sequence[Row]) -> list[Trait]:
    """What is one number per run; a trait that no run has is left out."""
    plain: dict[str, Callable[[Side], float | None]] = {
        "s_per_1000_tokens": seconds_per_1000_tokens,
        "prefill_fall": lambda side: fall(side, "prefill_tokens_per_s"),
        "decode_fall": lambda side: fall(side, decode_figure([side])),
        "cold_to_warm": lambda side: ratio(1, warm_share(list(side.cells.values()))),
        "ceiling_tokens_per_s": lambda side: _ceiling(side)[0],
        "users_at_ceiling": lambda side: _ceiling(side)[1],
        "slots": lambda side: side.run.slots,
        "turns_that_lose_the_word": turns_that_lose,
        "noise_floor": lambda side: side.noise,
        "drift": lambda side: side.drift,
    }
    found = []
    for name, value in plain.items():
        values = tuple(value(side) for side in sides)
        verdicts: tuple[Verdict | None, ...] = (None,) * len(sides)
        if name == "cold_to_warm":
            verdicts = (None, *(_reuse_verdict(sides, rows, i) for i in range(1, len(sides))))
        if any(v is not None for v in values):
            found.append(Trait(name=name, values=values, verdicts=verdicts))
    return found


def seconds_per_1000_tokens(side: Side) -> float | None:
    """The slope of the wait between the two longest prompts."""
    points = prompt_points(side)
    if len(points) < 2:
        return None
    (x1, y1), (x2, y2) = points[-2:]
    return (y2 - y1) / (x2 - x1) * 1000 / 1e9


def prompt_points(side: Side) -> list[tuple[float, float]]:
    """(prompt tokens, TTFT in ns) of each prompt length, growing; the size asked for where none is counted."""
    found = sorted(
        (length, wait_ns)
        for cell in _of(side, "prompt_length")
        if (length := cell.median("prompt_tokens") or cell.size) and (wait_ns := cell.median("ttft_ns")) is not None
    )
    return [p for p, after in pairwise([*found, (float("inf"), 0.0)]) if p[0] < after[0]]


def fall(side: Side, figure: str) -> float | None:
    """How a speed changes from the shortest to the longest prompt, as a fraction: −0.26 is 26 % slower."""
    speeds = [speed for cell in _of(side, "prompt_length") if (speed := cell.median(figure))]
    return speeds[-1] / speeds[0] - 1 if len(speeds) > 1 else None


def turns_that_lose(side: Side) -> int | None:
    """The first number of turns after which, without a budget, most code words did not come back."""
    return next((c.size for c in _of(side, "overflow", "no_budget") if c.asked and c.lost), None)


def _ceiling(side: Side) -> tuple[float | None, int | None]:
    return ceiling(_of(side, "users")) or (None, None)


def _of(side: Side, experiment: str, variant: str | None = None) -> list[Cell]:
    return [c for c in side.cells.values() if (c.experiment, c.variant) == (experiment, variant)]


def _reuse_verdict(sides: Sequence[Side], rows: Sequence[Row], other: int) -> Verdict | None:
    """The same kind of reuse is the same shape, however many times faster; else the rule of series decides."""
    shares = [warm_share(list(side.cells.values())) for side in (sides[0], sides[other])]
    if None in shares:
        return None
    again = [row for row in rows if row.key[:2] in (("repeat_prompt", "first"), ("repeat_prompt", "again"))]
    if any(row.mark is Mark.no for row in again):
        return NOT_COMPARABLE
    if len({reuse(share) for share in shares if share is not None}) == 1:
        return SAME
    return _verdict(_pairs(again, other, "ttft_ns"), "ttft_ns", larger_noise(sides[0], sides[other]))
