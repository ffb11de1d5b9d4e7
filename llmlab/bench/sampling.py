"""Sampling: how often a cell was measured, and whether it is measured once more."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from llmlab.bench.plan import PlannedCell
from llmlab.bench.session import Session
from llmlab.call import Call, has_flag

GIVE_UP = 2
"""After so many attempts without a result a cell is left."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a cell has: good samples, seconds spent on it, and the number of its last complete attempt."""

    samples: int
    spent_s: float
    last: int


def tally(session: Session, cell: PlannedCell) -> Tally:
    """Count a cell's finished calls: an answer, a complete burst, or a refused conversation is a sample."""
    calls = session.measured(cell.experiment, cell.variant, cell.size)
    attempts = [list(group) for _, group in groupby(sorted(calls, key=_repeat), key=_repeat)]
    complete = [calls for calls in attempts if is_complete(calls, cell)]
    return Tally(
        samples=sum(map(is_good, complete)),
        spent_s=sum(max(c.total_ns or 0 for c in calls) for calls in attempts) / 1e9,
        last=max((c.repeat or 0 for calls in complete for c in calls), default=0),
    )


def wants_more(session: Session, cell: PlannedCell, most: int | None = None) -> bool:
    """Whether a cell needs another sample; one that only fails is left after a second attempt."""
    if session.failures[cell] >= GIVE_UP:
        return False
    known = tally(session, cell)
    return session.plan.wants_more(known.samples, known.spent_s, most)


def is_complete(calls: Sequence[Call], cell: PlannedCell) -> bool:
    """A burst needs every user's row; anything else is one call."""
    return cell.experiment != "users" or len({c.user for c in calls}) >= cell.size


def is_good(calls: Sequence[Call]) -> bool:
    return any(c.outcome == "ok" or is_refusal(c) for c in calls)


def is_refusal(call: Call) -> bool:
    """A server that refuses an overflowing conversation has given its answer."""
    return call.experiment == "overflow" and call.outcome == "error" and call.http_status == 400


def attempted(session: Session, cell: PlannedCell, calls: Sequence[Call]) -> None:
    """Note an attempt that brought nothing, with its reason once."""
    if is_good(calls):
        return
    session.failures[cell] += 1
    reason = next((c.error for c in calls if c.error), None) or calls[0].outcome
    session.note_once(f"{cell.experiment} {cell.size:,}: {reason}")


def was_reloaded(session: Session, calls: Sequence[Call]) -> bool:
    """Whether the model was loaded inside a measured call; said once."""
    if not any(has_flag(c, "reloaded") for c in calls):
        return False
    session.mark("the model was reloaded in mid-run (another client, or too little memory?); measured again")
    return True


def _repeat(call: Call) -> int:
    return call.repeat or 0
