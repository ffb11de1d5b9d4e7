"""Facts: what is known of each run that bears on comparing them, and what it does to the rows of a report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from llmlab.figures import MISSING, format_count, format_percent
from llmlab.report.side import Side, plain

BUSY_LOAD = 0.5
"""A machine whose processors were busier than this before the run is marked."""

DIFFERENT = "different weights"


class Mark(StrEnum):
    """How far a row may be compared."""

    ok = "ok"
    caution = "caution"
    no = "not comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something known of each run: `values` are raw, `shown` as printed, one per side.

    `mark` and `why` say what it does to every row, or to the rows of `experiments` alone. A fact that is not `telling`
    matters only where it carries a mark.
    """

    name: str
    values: tuple[Any, ...]
    shown: tuple[str, ...]
    mark: Mark = Mark.ok
    why: str = ""
    experiments: tuple[str, ...] = ()
    telling: bool = True

    @property
    def differs(self) -> bool:
        return len(set(self.shown)) > 1


def facts(sides: Sequence[Side]) -> list[Fact]:
    """Everything known that bears on comparing the runs."""
    weights = _weights(sides)
    quantization = _fact("quantization", sides, lambda s: s.model and s.model.quantization)
    if weights.why != DIFFERENT:
        quantization = _unless_equal(quantization, "other quantization")
    return [
        _machine(sides),
        _fact("model", sides, lambda s: s.model and s.model.name),
        weights,
        quantization,
        _unless_equal(_fact("server", sides, lambda s: s.server), "other server"),
        _unless_equal(_window(sides), "other window"),
        _unless_equal(_fact("slots", sides, lambda s: s.run.slots), "other slots", experiments=("users",)),
        _where_any(_fact("on the GPU", sides, lambda s: s.gpu_share, format_percent), _spilled, "GPU spill"),
        _where_any(_fact("power", sides, lambda s: s.run.power), lambda v: v == "battery", "on battery"),
        _where_any(_busy(sides), lambda v: v > BUSY_LOAD, "busy CPU"),
        _drift(sides),
        _where_any(_fact("ended", sides, lambda s: s.run.outcome or "unfinished"), _cut_short, "run cut short"),
        _answer_length(sides, "answer length", "num_predict", ("prompt_length", "repeat_prompt")),
        _answer_length(sides, "answer length of users", "users_predict", ("users",)),
        _unless_equal(_fact("bench version", sides, lambda s: s.run.bench_version), "other bench version", Mark.no),
    ]


def differences(known: Sequence[Fact]) -> list[Fact]:
    """The facts that differ or carry a mark, the gravest first."""
    found = [f for f in known if f.mark is not Mark.ok or (f.telling and f.differs)]
    return sorted(found, key=lambda f: list(Mark).index(f.mark), reverse=True)


def _fact(
    name: str,
    sides: Sequence[Side],
    value: Callable[[Side], Any],
    show: Callable[[Any], str] = plain,
) -> Fact:
    values = tuple(value(s) for s in sides)
    return Fact(name=name, values=values, shown=tuple(MISSING if v in (None, "") else show(v) for v in values))


def _unless_equal(fact: Fact, why: str, mark: Mark = Mark.caution, experiments: tuple[str, ...] = ()) -> Fact:
    """`fact`, marking the rows where it is not the same in all runs."""
    if not fact.differs:
        return fact
    unknown = MISSING in fact.shown and mark is Mark.caution
    return replace(fact, mark=mark, why=f"{fact.name} not known" if unknown else why, experiments=experiments)


def _where_any(fact: Fact, bad: Callable[[Any], bool], why: str) -> Fact:
    """`fact`, marking the rows where it is bad in any run, even in all of them."""
    is_bad = any(v is not None and bad(v) for v in fact.values)
    return replace(fact, mark=Mark.caution, why=why) if is_bad else fact


def _answer_length(sides: Sequence[Side], name: str, key: str, experiments: tuple[str, ...]) -> Fact:
    return _unless_equal(_fact(name, sides, lambda s: s.plan.get(key)), "other answer length", Mark.no, experiments)


def _machine(sides: Sequence[Side]) -> Fact:
    fact = _fact("machine", sides, lambda s: s.run.machine_id)
    lines = tuple(s.machine_line for s in sides)
    twins = fact.differs and len(set(lines)) == 1
    return replace(
        fact, shown=tuple(f"{a} ({b[:6]})" for a, b in zip(lines, fact.shown, strict=True)) if twins else lines
    )


def _weights(sides: Sequence[Side]) -> Fact:
    """Models are compared by digest: one name can be two sets of weights, and two names one."""
    fact = _fact(
        "weights", sides, lambda s: s.model and s.model.digest, lambda v: plain(v).removeprefix("sha256:")[:12]
    )
    if len(sides) == 1:
        return fact
    if MISSING in fact.shown:
        return replace(fact, mark=Mark.caution, why="weights not known")
    return replace(fact, mark=Mark.caution, why=DIFFERENT) if fact.differs else fact


def _busy(sides: Sequence[Side]) -> Fact:
    return replace(_fact("CPU load before", sides, lambda s: s.run.load_average, format_percent), telling=False)


def _drift(sides: Sequence[Side]) -> Fact:
    shown = partial(format_percent, sign=True)
    fact = replace(_fact("drift", sides, lambda s: s.drift, shown), telling=False)
    return replace(fact, mark=Mark.caution, why="drift") if any(s.drifting for s in sides) else fact


def _window(sides: Sequence[Side]) -> Fact:
    """The window that was really there, with the one asked for where that is another."""
    fact = _fact("window", sides, lambda s: s.window, format_count)
    asked = [s.run.num_ctx if s.run.num_ctx != s.window else None for s in sides]
    shown = (f"{a} of {format_count(b)} asked" if b else a for a, b in zip(fact.shown, asked, strict=True))
    return replace(fact, shown=tuple(shown))


def _spilled(share: float) -> bool:
    return 0 < share < 0.995


def _cut_short(outcome: str) -> bool:
    return outcome not in ("ok", "failed")
