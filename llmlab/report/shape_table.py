"""Shape table: every series and trait of the runs on one line each, with its verdict."""

from collections.abc import Callable, Sequence

from llmlab.figures import MISSING, format_count, format_percent, format_ratio, format_seconds, format_speed
from llmlab.report.document import Report, Table
from llmlab.report.shape import Series, Trait
from llmlab.report.side import Side
from llmlab.report.verdict import Verdict

SERIES_NAMES = {
    ("prompt_length", "ttft_ns"): "first token",
    ("prompt_length", "prefill_tokens_per_s"): "prefill speed",
    ("prompt_length", "decode_tokens_per_s"): "decode speed",
    ("prompt_length", "user_tokens_per_s"): "speed seen",
    ("users", "ttft_ns"): "first token",
    ("users", "ttft_worst_ns"): "worst first token",
    ("users", "user_tokens_per_s"): "speed each",
    ("users", "total_tokens_per_s"): "total speed",
}
GROWING = {"prompt_length": "by prompt", "users": "by users"}


def _signed(value: float) -> str:
    return format_percent(value, sign=True)


TRAITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "s_per_1000_tokens": ("wait for 1,000 more tokens", format_seconds),
    "prefill_fall": ("prefill, shortest to longest", _signed),
    "decode_fall": ("decode, shortest to longest", _signed),
    "cold_to_warm": ("first token cold ÷ warm", format_ratio),
    "ceiling_tokens_per_s": ("ceiling", format_speed),
    "users_at_ceiling": ("users at 85 % of it", format_count),
    "slots": ("slots", format_count),
    "turns_that_lose_the_word": ("turns that lose the word", format_count),
    "noise_floor": ("noise floor", format_percent),
    "drift": ("drift in the run", _signed),
}


def shape_table(report: Report) -> Table:
    """The shape of the runs: each value ÷ its first one, then one number a line; verdicts against the first run."""
    sides, others = report.sides, report.sides[1:]
    series = [
        [series_name(s), *(_relative(values) for values in s.relative), *_verdicts(s.verdicts, others)]
        for s in report.shape.series
    ]
    traits = [
        [TRAITS[t.name][0], *(trait_text(t, i, sides) for i in range(len(sides))), *_verdicts(t.verdicts, others)]
        for t in report.shape.traits
    ]
    verdicts = [f"verdict on {side.label}" for side in others] if len(others) > 1 else ["verdict"] * len(others)
    width = len(sides) + len(verdicts) + 1
    against = f", verdicts against {sides[0].label}" if len(others) > 1 else ""
    return Table(
        title=f"Shape: each value ÷ the first of its row{against}",
        columns=("", *(side.label for side in sides), *verdicts),
        rows=[*series, *traits],
        left=frozenset(range(width)),
    )


def series_name(series: Series) -> str:
    """`first token by prompt`."""
    name = SERIES_NAMES.get((series.experiment, series.figure), series.figure)
    return f"{name} {GROWING[series.experiment]}"


def trait_text(trait: Trait, index: int, sides: Sequence[Side]) -> str:
    """The trait of one side as printed; slots as many as the users that were tried may be more."""
    value = trait.values[index]
    if value is None:
        return MISSING
    text = TRAITS[trait.name][1](value)
    return f"≥ {text}" if trait.name == "slots" and value >= _most_users(sides[index]) else text


def _most_users(side: Side) -> float:
    return max((c.size or 0 for c in side.cells.values() if c.experiment == "users"), default=float("inf"))


def _relative(values: Sequence[float | None]) -> str:
    return " → ".join(format_ratio(v).removesuffix("×") for v in values)


def _verdicts(verdicts: Sequence[Verdict | None], others: Sequence[Side]) -> list[str]:
    return ["" if verdict is None else str(verdict) for verdict in verdicts[1:]]
