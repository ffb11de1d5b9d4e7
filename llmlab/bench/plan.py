"""Plan: every cell of a run, with all that must stay the same for two runs to be comparable."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from llmlab.bench.options import BenchOptions
from llmlab.bench.prompts import SHORTEST
from llmlab.cells import EXPERIMENTS
from llmlab.errors import UsageError

BENCH_VERSION = 1
"""Raised whenever prompts or method change: runs of two versions are not comparable."""
ANCHOR_TOKENS, ANCHOR_PREDICT = 256, 32
THINKING_PREDICT = 1024
RECALL_PREDICT = 48
REPEAT_VARIANTS = ("first", "again", "same_start", "new_start", "control")


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One cell to measure; `size` is prompt tokens, users or turns."""

    experiment: str
    variant: str | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run's settings, resolved; kept in `runs.plan_json`, so that a resumed run goes on with the same ones.

    A cell repeats until it has `most_samples` or has spent `cell_s` seconds, at least once; `repeat` is an exact number
    instead. Code words are repeated at most `words` times under the same rule.
    """

    experiments: tuple[str, ...]
    sizes: tuple[int, ...]
    users: tuple[int, ...]
    turns: tuple[int, ...]
    num_ctx: int
    num_predict: int
    users_predict: int
    repeat: int | None
    most_samples: int
    cell_s: float
    words: int
    seed: int
    quick: bool
    cooldown_s: float

    @property
    def repeat_size(self) -> int:
        """Prompt tokens of the repeat_prompt rows: the longest."""
        return max(self.sizes)

    @property
    def turn_tokens(self) -> int:
        """Tokens of one long turn, user and assistant together."""
        return self.num_ctx // 10

    def cells(self, experiment: str | None = None) -> Iterator[PlannedCell]:
        """The cells of the run, or of one experiment, in order."""
        for name in self.experiments:
            if experiment in (None, name):
                yield from self._cells_of(name)

    def _cells_of(self, name: str) -> Iterator[PlannedCell]:
        if name == "prompt_length":
            yield from (PlannedCell(name, None, size) for size in self.sizes)
        elif name == "repeat_prompt":
            yield from (PlannedCell(name, variant, self.repeat_size) for variant in REPEAT_VARIANTS)
        elif name == "users":
            yield from (PlannedCell(name, None, users) for users in self.users)
        else:
            yield from (PlannedCell(name, "no_budget", turns) for turns in self.turns)
            yield from (PlannedCell(name, v, max(self.turns)) for v in ("truncate_false", "budget", "budget_pin"))

    def wants_more(self, samples: int, spent_s: float, most: int | None = None) -> bool:
        """Whether a cell that has so many samples, and took so long for them, is to be measured once more."""
        if self.repeat:
            return samples < self.repeat
        return samples == 0 or (samples < (most or self.most_samples) and spent_s < self.cell_s)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read `runs.plan_json`."""
        data = json.loads(text)
        settings: dict[str, Any] = {f.name: data[f.name] for f in fields(cls)}
        settings |= {name: tuple(settings[name]) for name in ("experiments", "sizes", "users", "turns")}
        return cls(**settings)


def make_plan(options: BenchOptions, *, window: int | None = None, model_context: int | None = None) -> Plan:
    """Resolve the options.

    The window is the server's own where it tells one (OpenAI wire), else the one asked for, and never longer than what
    the model was made for. Default sizes that do not fit into it are left out. Raises UsageError before anything is
    sent where a size that was asked for cannot fit, or a number makes no sense.
    """
    unknown = [e for e in options.experiments if e not in EXPERIMENTS]
    if unknown:
        raise UsageError(f"there is no experiment {unknown[0]!r}", f"Choose from: {', '.join(EXPERIMENTS)}")
    quick = options.quick
    num_ctx = window or options.num_ctx or (1024 if quick else 4096)
    num_ctx = min(num_ctx, model_context or num_ctx)
    num_predict = options.num_predict or (32 if quick else 64)
    sizes = numbers("--sizes", options.sizes, default_sizes(quick))
    if options.sizes is None:
        sizes = tuple(s for s in sizes if s + num_predict <= num_ctx) or sizes
    plan = Plan(
        experiments=options.wanted,
        sizes=sizes,
        users=numbers("--users", options.users, (1, 2, 4, 8)),
        turns=numbers("--turns", options.turns, (2, 6, 12)),
        num_ctx=num_ctx,
        num_predict=num_predict,
        users_predict=options.num_predict or (48 if quick else 130),
        repeat=options.repeat,
        most_samples=3 if quick else 5,
        cell_s=5.0 if quick else 30.0,
        words=3,
        seed=options.seed,
        quick=quick,
        cooldown_s=options.cooldown_s,
    )
    check_fit(plan, "this model's longest window of" if num_ctx == model_context else "num_ctx")
    return plan


def default_sizes(quick: bool) -> tuple[int, ...]:
    return (100, 400, 800) if quick else (100, 1000, 3000)


def left_out(options: BenchOptions, plan: Plan) -> tuple[int, ...]:
    """Default sizes that the window has no room for."""
    return () if options.sizes else tuple(s for s in default_sizes(plan.quick) if s not in plan.sizes)


def numbers(flag: str, given: tuple[int, ...] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers in order and once each."""
    if given is None:
        return default
    if not given or min(given) < 1:
        raise UsageError(f"{flag} wants whole numbers from 1 up, separated by commas", f"Use {flag} {csv(default)}")
    return tuple(sorted(set(given)))


def csv(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def check_fit(plan: Plan, window: str) -> None:
    """UsageError where a planned prompt and its answer cannot be in the window, or a prompt is too short to make.

    `window` says in words whose the window is.
    """
    if {"prompt_length", "repeat_prompt"} & set(plan.experiments):
        longest, shortest = max(plan.sizes), min(plan.sizes)
        fits = tuple(s for s in plan.sizes if s + plan.num_predict <= plan.num_ctx)
        smaller = f"--sizes {csv(fits)}" if fits else ""
        what = f"a prompt of {longest:,} tokens and {plan.num_predict} of answer do"
        check_window(plan, longest + plan.num_predict, what, window, smaller)
        if shortest < SHORTEST:
            raise UsageError(
                f"a prompt of {shortest} tokens is shorter than its own instructions", f"Use --sizes from {SHORTEST} up"
            )
    if "users" in plan.experiments:
        what = f"a short question and {plan.users_predict} tokens of answer do"
        check_window(plan, SHORTEST + plan.users_predict, what, window)
    check_window(plan, ANCHOR_TOKENS + ANCHOR_PREDICT, f"the anchor calls of {ANCHOR_TOKENS} tokens do", window)


def check_window(plan: Plan, need: int, what: str, window: str, smaller: str = "") -> None:
    if need > plan.num_ctx:
        larger = f"--num-ctx {round_up(need)}" if window == "num_ctx" else ""
        ways = " or ".join(filter(None, (larger, smaller)))
        raise UsageError(f"{what} not fit into {window} {plan.num_ctx:,}", f"Use {ways}" if ways else None)


def round_up(tokens: int) -> int:
    """The next window people ask for."""
    window = 512
    while window < tokens:
        window *= 2
    return window
