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


def make_plan(options: BenchOptions, window: int | None = None) -> Plan:
    """Resolve the options; `window` is the server's own where it tells one (OpenAI wire).

    Raises UsageError before anything is sent where a prompt cannot fit, or a number makes no sense.
    """
    unknown = [e for e in options.experiments if e not in EXPERIMENTS]
    if unknown:
        raise UsageError(f"there is no experiment {unknown[0]!r}", f"Choose from: {', '.join(EXPERIMENTS)}")
    quick = options.quick
    num_ctx = options.num_ctx or window or (1024 if quick else 4096)
    plan = Plan(
        experiments=options.wanted,
        sizes=numbers("--sizes", options.sizes, (100, 400, 800) if quick else (100, 1000, 3000)),
        users=numbers("--users", options.users, (1, 2, 4, 8)),
        turns=numbers("--turns", options.turns, (2, 6, 12)),
        num_ctx=num_ctx,
        num_predict=options.num_predict or (32 if quick else 64),
        users_predict=options.num_predict or (48 if quick else 130),
        repeat=options.repeat,
        most_samples=3 if quick else 5,
        cell_s=5.0 if quick else 30.0,
        words=3,
        seed=options.seed,
        quick=quick,
        cooldown_s=options.cooldown_s,
    )
    check_fit(plan)
    return plan


def numbers(flag: str, given: tuple[int, ...] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers in order and once each."""
    if given is None:
        return default
    if not given or min(given) < 1:
        raise UsageError(f"{flag} wants whole numbers from 1 up, separated by commas", f"Use {flag} {csv(default)}")
    return tuple(sorted(set(given)))


def csv(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def check_fit(plan: Plan) -> None:
    """UsageError where a planned prompt and its answer cannot be in the window, or a prompt is too short to make."""
    if {"prompt_length", "repeat_prompt"} & set(plan.experiments):
        longest, shortest = max(plan.sizes), min(plan.sizes)
        need = longest + plan.num_predict
        if need > plan.num_ctx:
            fits = tuple(s for s in plan.sizes if s + plan.num_predict <= plan.num_ctx)
            smaller = f" or --sizes {csv(fits)}" if fits else ""
            raise UsageError(
                f"a prompt of {longest:,} tokens and {plan.num_predict} of answer do not fit into "
                f"num_ctx {plan.num_ctx:,}",
                f"Use --num-ctx {round_up(need)}{smaller}",
            )
        if shortest < SHORTEST:
            raise UsageError(
                f"a prompt of {shortest} tokens is shorter than its own instructions", f"Use --sizes from {SHORTEST} up"
            )
    if "users" in plan.experiments and SHORTEST + plan.users_predict > plan.num_ctx:
        raise UsageError(
            f"{plan.users_predict} tokens of answer do not fit into num_ctx {plan.num_ctx:,}",
            f"Use --num-ctx {round_up(SHORTEST + plan.users_predict)}",
        )
    if plan.num_ctx < ANCHOR_TOKENS + ANCHOR_PREDICT:
        raise UsageError(
            f"the anchor calls of {ANCHOR_TOKENS + ANCHOR_PREDICT} tokens do not fit into num_ctx {plan.num_ctx:,}",
            "Use --num-ctx 512 or more",
        )


def round_up(tokens: int) -> int:
    """The next window people ask for."""
    window = 512
    while window < tokens:
        window *= 2
    return window
