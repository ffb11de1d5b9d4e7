"""Cells: the measured calls of a run grouped by (experiment, variant, size), each figure with its samples."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

from llmlab.call import CUTS, Call, has_flag
from llmlab.figures import Figure

EXPERIMENTS = ("prompt_length", "repeat_prompt", "users", "overflow")
VARIANTS = (
    *("first", "again", "same_start", "new_start", "control"),
    *("no_budget", "truncate_false", "budget", "budget_pin"),
)
FIGURES = (
    *("prompt_tokens_estimate", "prompt_tokens", "cached_tokens", "output_tokens", "ttft_ns", "ttft_answer_ns"),
    *("load_ns", "prefill_ns", "decode_ns", "unexplained_ns", "stall_max_ns", "total_ns"),
    *("prefill_tokens_per_s", "decode_tokens_per_s", "user_tokens_per_s"),
)
"""Figures of every cell: fields and rates of `Call`; users cells have `ttft_worst_ns` and `total_tokens_per_s` too."""

WAITS = ("ttft_ns", "ttft_answer_ns", "unexplained_ns", "stall_max_ns", "user_tokens_per_s")
"""Figures that are not the server's where something between held the stream back."""

FAILED = ("error", "timeout", "incomplete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of one run.

    `n` counts samples: answers, and for `users` complete bursts, whose sample of a figure is the median over its users
    (`ttft_worst_ns` the largest, `total_tokens_per_s` the sum). `failed` counts requests, `error` is what the first of
    them said; `refused` those of `overflow` that the server refused with a 400, which is a result.

    `figures` holds only what was measured; a stream that a proxy held back (`buffered`) has no waits. `cut` is the
    gravest of the samples' `cut`. `reloaded`: every sample had the model loaded inside it. `flags` counts the words on
    the samples. `num_ctx_loaded` is set where all samples agree. `staircase_ns` (users): TTFT of the first, second, …
    user to be answered, medians over bursts without failures.
    `recalled` of `asked` code words came back; `reasons` says why for each that did not.
    """

    experiment: str
    variant: str | None
    size: int | None
    n: int = 0
    failed: int = 0
    refused: int = 0
    error: str | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    cut: str | None = None
    reloaded: bool = False
    flags: Mapping[str, int] = field(default_factory=dict)
    num_ctx_loaded: int | None = None
    staircase_ns: tuple[float, ...] = ()
    recalled: int | None = None
    asked: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str | None, int | None]:
        return self.experiment, self.variant, self.size

    @property
    def lost(self) -> bool:
        """Whether most of the code words did not come back."""
        return 2 * (self.recalled or 0) < self.asked

    def median(self, name: str) -> float | None:
        """The median of a figure, None where it was not measured."""
        figure = self.figures.get(name)
        return figure.median if figure else None


def cells(calls: Iterable[Call]) -> list[Cell]:
    """The cells of one run's calls, in the order of the lesson; calls that are not measured ones are left out.

    A cell nobody finished (only cancelled calls, or bursts that stopped half-way) is not there.
    """
    measured = [c for c in calls if c.purpose == "measured" and c.experiment and c.outcome != "cancelled"]
    measured.sort(key=lambda c: (_order(c), c.seq or 0, c.started_utc, c.id))  # a clock may be set back in mid-run
    found = (_cell(list(group)) for _, group in groupby(measured, key=_order))
    return [cell for cell in found if cell.n or cell.failed or cell.refused]


def find_cell(
    cells: Iterable[Cell], experiment: str, variant: str | None = None, size: int | None = None
) -> Cell | None:
    """The first cell of an experiment with this variant and, where given, this size."""
    return next(
        (c for c in cells if (c.experiment, c.variant) == (experiment, variant) and size in (None, c.size)), None
    )


def order(experiment: str, variant: str | None, size: int | None) -> tuple[int, str, int, str, int]:
    """The sort key of a cell: experiments and variants in the order of the lesson, sizes growing."""
    return (
        EXPERIMENTS.index(experiment) if experiment in EXPERIMENTS else len(EXPERIMENTS),
        experiment,
        VARIANTS.index(variant) if variant in VARIANTS else len(VARIANTS),
        variant or "",
        -1 if size is None else size,
    )


def _order(call: Call) -> tuple[int, str, int, str, int]:
    return order(call.experiment or "", call.variant, call.size)


def _cell(calls: Sequence[Call]) -> Cell:
    """The cell of calls that share experiment, variant and size; `calls` is not empty."""
    first = calls[0]
    if first.experiment == "users":
        samples = _without_reloads(_bursts(calls))
        calls = [c for burst in samples for c in burst]
    else:
        samples = _without_reloads([[c] for c in calls])
    good = [[c for c in sample if c.outcome == "ok"] for sample in samples]
    good = [sample for sample in good if sample]
    answered = [c for sample in good for c in sample]
    refused = [c for c in calls if _is_refusal(c)]
    failed = [c for c in calls if c.outcome in FAILED and not _is_refusal(c)]
    windows = {c.num_ctx_loaded for c in answered}
    return Cell(
        experiment=first.experiment or "",
        variant=first.variant,
        size=first.size,
        n=len(good),
        failed=len(failed),
        refused=len(refused),
        error=next((c.error for c in failed if c.error), None),
        figures=_figures(good, first.experiment == "users"),
        cut=max((c.cut for c in answered if c.cut in CUTS), key=CUTS.index, default=None),
        reloaded=bool(good) and all(any(has_flag(c, "reloaded") for c in sample) for sample in good),
        flags=dict(sorted(Counter(f for c in answered for f in filter(None, (c.flags or "").split(","))).items())),
        num_ctx_loaded=windows.pop() if len(windows) == 1 else None,
        staircase_ns=_staircase(good, first.size),
        recalled=sum(c.recalled is True for c in answered) if any(c.recalled is not None for c in answered) else None,
        asked=sum(c.recalled is not None or c.experiment == "overflow" for c in answered),
        reasons=tuple(_reason(c) for c in answered if c.experiment == "overflow" and not c.recalled),
    )


def _bursts(calls: Sequence[Call]) -> list[list[Call]]:
    """The complete bursts in order: every user has a row; of a burst made twice, as after a resume, the later rows."""
    found: dict[int | None, dict[int | None, Call]] = {}
    for call in calls:
        found.setdefault(call.repeat, {})[call.user] = call
    return [list(users.values()) for users in found.values() if len(users) >= (calls[0].size or 1)]


def _without_reloads(samples: list[list[Call]]) -> list[list[Call]]:
    """Leave out samples with a load inside them, as those were measured again; if there is no other, keep them."""
    clean = [s for s in samples if not any(has_flag(c, "reloaded") for c in s)]
    return clean if any(c.outcome == "ok" for s in clean for c in s) else samples


def _figures(samples: Sequence[Sequence[Call]], burst: bool) -> dict[str, Figure]:
    found = {name: Figure.of(_middle(sample, name) for sample in samples) for name in FIGURES}
    if burst:
        found["ttft_worst_ns"] = Figure.of(
            max((ns for c in s if (ns := _value(c, "ttft_ns")) is not None), default=None) for s in samples
        )
        found["total_tokens_per_s"] = Figure.of(map(total_tokens_per_s, samples))
    return {name: figure for name, figure in found.items() if figure}


def _middle(sample: Sequence[Call], name: str) -> float | None:
    values = [v for c in sample if (v := _value(c, name)) is not None]
    return median(values) if values else None


def _value(call: Call, name: str) -> float | None:
    if name in WAITS and has_flag(call, "buffered"):
        return None
    value: float | None = getattr(call, name)
    return value


def total_tokens_per_s(burst: Sequence[Call]) -> float | None:
    """Σ output tokens of a burst's successful users ÷ (last piece of the last one − barrier), which all left at once.

    None where a count or a time is missing.
    """
    good = [c for c in burst if c.outcome == "ok"]
    tokens = [c.output_tokens for c in good]
    ends_ns = [None if c.last_piece_ns is None else (c.connect_ns or 0) + c.last_piece_ns for c in good]
    if not good or None in tokens or None in ends_ns:
        return None
    span_ns = max(e for e in ends_ns if e is not None)
    return sum(t for t in tokens if t is not None) / span_ns * 1e9 if span_ns > 0 else None


def _staircase(samples: Sequence[Sequence[Call]], users: int | None) -> tuple[float, ...]:
    stairs = [
        sorted(ns for c in s if (ns := _value(c, "ttft_ns")) is not None) for s in samples if s[0].experiment == "users"
    ]
    return tuple(median(step) for step in zip(*(s for s in stairs if len(s) == users), strict=True))


def _is_refusal(call: Call) -> bool:
    return call.experiment == "overflow" and call.outcome == "error" and call.http_status == 400


def _reason(call: Call) -> str:
    """Why the code word did not come back."""
    if call.recalled is None or has_flag(call, "no_answer"):
        return "no answer"
    if call.cut in ("proved", "suspected"):
        return "cut by the server" if call.cut == "proved" else "probably cut by the server"
    # A pinned word is sent whatever else was dropped.
    dropped = call.messages_dropped and not call.messages_pinned
    return "dropped by the budget" if dropped else "model forgot although it fit"
