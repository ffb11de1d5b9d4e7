"""Findings: what a run says of its machine, in words and from its own numbers."""

from collections.abc import Sequence

from llmlab.call import Call
from llmlab.cells import Cell, cells, find_cell
from llmlab.figures import format_count, format_seconds, format_speed, ratio
from llmlab.run import Run

CEILING = 0.85
"""The ceiling is reached with the fewest users that get this fraction of the highest total speed."""
STEADY = 0.95
"""A speed that falls by less than this holds."""
FREE, REUSED = 0.25, 0.7
"""A repeated prompt that waits less than these fractions of a cold one is almost free, or partly reused."""


def findings(calls: Sequence[Call], run: Run) -> list[str]:
    """One sentence or two for each thing the run measured: prompt length, repeated prefix, users, overflow."""
    measured = cells(calls)
    found = (prompt_finding(measured), repeat_finding(measured), users_finding(measured, run), word_finding(measured))
    return [text for text in found if text]


def prompt_finding(measured: Sequence[Cell]) -> str | None:
    """Is the prompt the slow part?"""
    series = [c for c in measured if c.experiment == "prompt_length" and c.median("ttft_ns")]
    if len(series) < 2:
        return None
    short, long = series[0], series[-1]
    waits = f"{_wait(short)} for {_tokens(short)}, {_wait(long)} for {_tokens(long)}"
    slower = ratio(long.median("ttft_ns"), short.median("ttft_ns")) or 0
    changes = _changes(short, long)
    if slower < 2:
        return f"The prompt is not the slow part here: the first token takes {waits}.{changes}"
    return f"The prompt is the slow part: the first token takes {waits}.{changes}"


def repeat_finding(measured: Sequence[Cell]) -> str | None:
    """Is a repeated prefix almost free?"""
    first, again, start, control = (_repeat(measured, v) for v in ("first", "again", "same_start", "control"))
    share = warm_share(measured)
    if share is None:
        return None
    waits = f"{_wait(first)} the first time, {_wait(again)} again"
    if control:
        waits += f", {_wait(control)} for an unrelated prompt"
    reused = reuse(share)
    if reused == "none":
        return f"No reuse here: the same prompt twice waits {waits}."
    if reused == "part":
        return f"A repeated prompt is partly reused: {waits}. Put what does not change first."
    ending = ""
    if start and reuse(_share(measured, start)) == "none":
        ending = f" But a new ending costs {_wait(start)}: only an identical prompt is reused."
    return f"A repeated prefix is almost free: {waits}. Put what does not change first.{ending}"


def warm_share(measured: Sequence[Cell]) -> float | None:
    """TTFT of the prompt sent again ÷ TTFT of a cold one; None where it was not measured."""
    again = _repeat(measured, "again")
    return _share(measured, again) if again and _repeat(measured, "first") else None


def reuse(share: float) -> str:
    """What a `warm_share` means: `full`, `part` or `none`."""
    return "none" if share >= REUSED else "part" if share > FREE else "full"


def _share(measured: Sequence[Cell], warm: Cell) -> float:
    # The unrelated prompt shows how fast a cold one is by now: speed it has in common is not the cache's doing.
    cold = [c.median("ttft_ns") or 0 for v in ("first", "control") if (c := _repeat(measured, v))]
    return (warm.median("ttft_ns") or 0) / min(cold)


def _repeat(measured: Sequence[Cell], variant: str) -> Cell | None:
    cell = find_cell(measured, "repeat_prompt", variant)
    return cell if cell and cell.median("ttft_ns") else None


def users_finding(measured: Sequence[Cell], run: Run) -> str | None:
    """Do more users share a fixed total, and where is the ceiling?"""
    series = [c for c in measured if c.experiment == "users" and c.size and c.median("total_tokens_per_s")]
    found = ceiling(series)
    if len(series) < 2 or found is None:
        return None
    one, most = series[0], series[-1]
    top, at = found
    totals = f"{_total(one)} in total with {_users(one.size)}, {_total(most)} with {_users(most.size)}"
    last = f"the last of {most.size} waits {_seconds(most, 'ttft_worst_ns')}"
    if at == most.size:
        return f"More users still get more out of this machine: {totals}; {last}.{_slots(run, series)}"
    return (
        f"More users share a fixed total: {totals}. The ceiling here is {format_speed(top)}, "
        f"and {_users(at)} come{'s' if at == 1 else ''} within 15 % of it; "
        f"beyond that they only wait longer: {last}.{_slots(run, series)}"
    )


def word_finding(measured: Sequence[Cell]) -> str | None:
    """What did the window lose, and what did the budget save?"""
    plain = [c for c in measured if (c.experiment, c.variant) == ("overflow", "no_budget") and c.asked]
    if not plain:
        return None
    lost = next((c for c in plain if c.lost), None)
    if lost is None:
        turns = plain[-1].size
        return (
            f"The word came back after {turns} turns: nothing was lost at this window." if plain[-1].recalled else None
        )
    why = f" ({lost.reasons[0]})" if lost.reasons else ""
    pinned = find_cell(measured, "overflow", "budget_pin")
    kept = ""
    if pinned and pinned.asked:
        kept = f" With the budget and the word pinned it {'came back' if pinned.recalled else 'was lost as well'}."
    return f"After {lost.size} turns the word was lost{why}.{kept}"


def ceiling(series: Sequence[Cell]) -> tuple[float, int] | None:
    """The highest total speed of the users cells in tokens/s, and the fewest users that reach 85 % of it."""
    totals = [(total, c.size) for c in series if c.size and (total := c.median("total_tokens_per_s"))]
    if not totals:
        return None
    top = max(total for total, _ in totals)
    return top, min(size for total, size in totals if total >= CEILING * top)


def _changes(short: Cell, long: Cell) -> str:
    """How prefill and decode speed change from the shortest to the longest prompt."""
    parts: list[str] = []
    for name, word in (("prefill_tokens_per_s", "prefill"), ("decode_tokens_per_s", "decode")):
        a, b = short.median(name), long.median(name)
        if a and b:
            if STEADY < b / a < 1 / STEADY:
                parts.append(f"{word} holds at {format_speed(b)}")
                continue
            verb = "falls" if b < a else "rises"
            verb = f" {verb}" if not parts or verb not in parts[-1] else ""
            parts.append(f"{word}{verb} from {format_speed(a).removesuffix(' tok/s')} to {format_speed(b)}")
    return f" {' and '.join(parts).capitalize()}." if parts else ""


def _slots(run: Run, series: Sequence[Cell]) -> str:
    """One at a time, or how many at once; nothing where it was not measured."""
    most = max(c.size or 0 for c in series)
    if not run.slots:
        return ""
    if run.slots == 1:
        return " Answers were given one at a time: the others queue."
    return f" At least {run.slots} answers ran at once." if run.slots >= most else f" {run.slots} answers ran at once."


def _wait(cell: Cell | None) -> str:
    return _seconds(cell, "ttft_ns")


def _seconds(cell: Cell | None, name: str) -> str:
    value = cell.median(name) if cell else None
    return format_seconds(None if value is None else value / 1e9)


def _tokens(cell: Cell) -> str:
    """The prompt's length as the server counts it, else as asked for."""
    counted = cell.median("prompt_tokens")
    return f"{format_count(counted)} tokens" if counted else f"about {format_count(cell.size)} tokens"


def _total(cell: Cell) -> str:
    return format_speed(cell.median("total_tokens_per_s"))


def _users(n: int | None) -> str:
    return "1 user" if n == 1 else f"{n} users"
