"""Tables: the four experiments as a person reads them, filled from the run's cells."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmlab.bench.overflow import WORDING
from llmlab.bench.session import Session
from llmlab.bench.slots import Slots, run_slots, verdict
from llmlab.call import Call
from llmlab.cells import Cell, cells, find_cell
from llmlab.figures import MISSING, format_count, format_percent, format_range, format_seconds, format_value, ratio
from llmlab.findings import prompt_finding, repeat_finding, users_finding, word_finding

TITLES = {
    "prompt_length": "Prompt length: one request behind longer and longer texts, each cold",
    "repeat_prompt": "Same prompt twice",
    "users": "Several users who ask at the same moment",
    "overflow": "Overflow: a code word, long turns, and the question for it",
}
VARIANTS = {
    "first": "first time",
    "again": "again",
    "same_start": "same start, new ending",
    "new_start": "new start, same rest",
    "control": "unrelated prompt",
}


LAG = "lag: this computer was too busy to take the times of a burst within 2 %"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, columns, rows of text, and lines below; the first column is a label, the others are figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[str] = field(default_factory=tuple)


def experiment_table(session: Session, experiment: str) -> Table:
    """The table of one experiment, from the run's calls so far."""
    found = [c for c in cells(session.calls) if c.experiment == experiment]
    make = {
        "prompt_length": prompt_table,
        "repeat_prompt": repeat_table,
        "users": users_table,
        "overflow": overflow_table,
    }[experiment]
    return make(session, found)


def prompt_table(session: Session, found: Sequence[Cell]) -> Table:
    columns = ("asked", "prompt tokens", "first token", *answer_column(found), "prefill", "decode", "n", "")
    rows = [
        (
            format_count(cell.size),
            shown(cell, "prompt_tokens"),
            shown(cell, "ttft_ns"),
            *answer_cell(found, cell),
            shown(cell, "prefill_tokens_per_s"),
            shown(cell, "decode_tokens_per_s", "user_tokens_per_s"),
            str(cell.n),
            notes(session, cell),
        )
        for cell in found
    ]
    return Table(TITLES["prompt_length"], columns, rows, lines(prompt_finding(found)))


def repeat_table(session: Session, found: Sequence[Cell]) -> Table:
    first = find_cell(found, "repeat_prompt", "first")
    columns = ("prompt", "prompt tokens", "cached", "first token", *answer_column(found), "of the first", "n", "")
    rows = [
        (
            VARIANTS.get(cell.variant or "", cell.variant or ""),
            shown(cell, "prompt_tokens"),
            shown(cell, "cached_tokens"),
            shown(cell, "ttft_ns"),
            *answer_cell(found, cell),
            format_percent(ratio(cell.median("ttft_ns"), first.median("ttft_ns") if first else None)),
            str(cell.n),
            notes(session, cell),
        )
        for cell in found
    ]
    return Table(TITLES["repeat_prompt"], columns, rows, lines(repeat_finding(found)))


def users_table(session: Session, found: Sequence[Cell]) -> Table:
    columns = ("users", "first token", "worst", "queued", "each user", "total", "failed", "n", "")
    rows = [
        (
            format_count(cell.size),
            shown(cell, "ttft_ns"),
            shown(cell, "ttft_worst_ns"),
            shown(cell, "unexplained_ns") if (cell.size or 1) > 1 else MISSING,
            shown(cell, "user_tokens_per_s", "decode_tokens_per_s"),
            shown(cell, "total_tokens_per_s"),
            str(cell.failed) if cell.failed else "0",
            str(cell.n),
            notes(session, cell),
        )
        for cell in found
    ]
    slots = slots_of(session.calls)
    below = [*lines(users_finding(found, session.run)), *staircase(found), *slots_lines(session, found, slots)]
    if any(cell.flags.get("lag") for cell in found):
        below.append(LAG)
    return Table(TITLES["users"], columns, rows, below)


def overflow_table(session: Session, found: Sequence[Cell]) -> Table:
    columns = ("turns", "how", "tokens sent (our estimate)", "tokens read", "remembered", "why not")
    rows = [
        (
            format_count(cell.size),
            WORDING.get(cell.variant or "", cell.variant or ""),
            shown(cell, "prompt_tokens_estimate"),
            shown(cell, "prompt_tokens"),
            remembered(cell),
            "; ".join(filter(None, (", ".join(dict.fromkeys(cell.reasons)), notes(session, cell)))),
        )
        for cell in found
    ]
    return Table(TITLES["overflow"], columns, rows, lines(word_finding(found)))


def shown(cell: Cell, *names: str) -> str:
    """The median of the first figure that was measured, with its range where there is more than one sample."""
    name = next((n for n in names if n in cell.figures), None)
    if name is None:
        return MISSING
    figure = cell.figures[name]
    text = format_value(name, figure.median)
    varies = figure.n > 1 and format_value(name, figure.min) != format_value(name, figure.max)
    return f"{text} ({format_range(name, figure)})" if varies else text


def answer_column(found: Sequence[Cell]) -> tuple[str, ...]:
    """Thinking models have a first word of the answer too, which is another moment than the first token."""
    return ("first word of answer",) if any(thinks(cell) for cell in found) else ()


def answer_cell(found: Sequence[Cell], cell: Cell) -> tuple[str, ...]:
    return (shown(cell, "ttft_answer_ns"),) if answer_column(found) else ()


def thinks(cell: Cell) -> bool:
    return cell.median("ttft_answer_ns") != cell.median("ttft_ns")


def remembered(cell: Cell) -> str:
    """`2 of 3`, `yes`, `no`, or that the server refused."""
    if not cell.asked:
        return "refused" if cell.refused else MISSING
    if cell.recalled is None:
        return "no answer"
    return f"{cell.recalled} of {cell.asked}" if cell.asked > 1 else "yes" if cell.recalled else "no"


def notes(session: Session, cell: Cell) -> str:
    """What a reader must know of the row."""
    said = []
    if cell.failed and cell.error:
        said.append(f"{cell.failed} failed: {cell.error}")
    if cell.reloaded:
        said.append("model reloaded inside")
    if cell.flags.get("short_answer"):
        said.append(short_answers(session, cell))
    if cell.flags.get("no_answer") and cell.experiment != "overflow":
        said.append("no answer, only tokens")
    if cell.cut in ("suspected", "proved") and cell.experiment != "overflow":
        said.append("window smaller under load" if cell.experiment == "users" else "cut by the server")
    if cell.flags.get("buffered"):
        said.append("stream held back by a proxy: no first token")
    if cell.flags.get("lag"):
        said.append("lag")
    return "; ".join(said)


def short_answers(session: Session, cell: Cell) -> str:
    """`short answer (3 of 128 tokens)`."""
    most = session.plan.users_predict if cell.experiment == "users" else session.plan.num_predict
    figure = cell.figures.get("output_tokens")
    least = format_count(figure.min) if figure else "?"
    return f"short answer ({least} of {most} tokens)"


def lines(*texts: str | None) -> list[str]:
    return [text for text in texts if text]


def slots_of(calls: Sequence[Call]) -> Slots | None:
    """The slots that the run's bursts show."""
    bursts: dict[tuple[int | None, int | None], list[Call]] = {}
    for call in calls:
        if call.purpose == "measured" and call.experiment == "users" and call.outcome != "cancelled":
            bursts.setdefault((call.size, call.repeat), []).append(call)
    return run_slots([list({c.user: c for c in burst}.values()) for burst in bursts.values()])


def staircase(found: Sequence[Cell]) -> list[str]:
    """When each user of the largest burst got his first token."""
    cell = max((c for c in found if c.staircase_ns), key=lambda c: c.size or 0, default=None)
    if cell is None or len(cell.staircase_ns) < 2:
        return []
    steps = ", ".join(format_seconds(step / 1e9) for step in cell.staircase_ns)
    return [f"First tokens of user 1 to {len(cell.staircase_ns)}: {steps}"]


def slots_lines(session: Session, found: Sequence[Cell], slots: Slots | None) -> list[str]:
    """How many answers ran at once, whether users queued or shared, and what to change."""
    if slots is None or not found:
        return []
    one = find_cell(found, "users", None, 1)
    most = max(found, key=lambda c: c.size or 0)
    alone = one.median("user_tokens_per_s") if one else None
    said = [f"Slots: {slots} ({verdict(slots, alone, most.median('user_tokens_per_s'), most.size or 1)})"]
    if not slots.at_least and session.run.server_kind in ("ollama", "llmlab"):
        setting = "OLLAMA_NUM_PARALLEL" if session.run.server_kind == "ollama" else "--num-parallel of `llmlab engine`"
        said.append(f"More at once: set {setting} where the server starts; each slot needs memory for its own window")
    return said
