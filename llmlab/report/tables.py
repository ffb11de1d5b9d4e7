"""Tables: the parts of a report in the order they are read, each as a table or lines of text."""

from llmlab.figures import MISSING, format_count, format_seconds
from llmlab.report.document import Block, Lines, Report, Table
from llmlab.report.experiments import experiment_table
from llmlab.report.facts import Fact
from llmlab.report.predictions import Guess, Prediction
from llmlab.report.rows import experiment_rows
from llmlab.report.shape_table import shape_table
from llmlab.report.side import Side, plain


def blocks(report: Report) -> list[Block]:
    """The report in reading order: the runs, what differs, the experiments, the shape, predictions, findings."""
    found: list[Block] = [Lines(title="Runs", lines=[run_line(side) for side in report.sides])]
    if len(report.sides) > 1 and not report.differences:
        found.append(Lines(title="May I compare?", lines=["Yes: nothing that matters differs between the runs."]))
    found += [difference_table(report), mark_lines(report)]
    found.extend(experiment_table(report.sides, name, rows) for name, rows in experiment_rows(report.rows).items())
    found += [shape_table(report), prediction_table(report)]
    for side in report.sides:
        found.append(
            Lines(title=f"Findings: {side.label}" if len(report.sides) > 1 else "Findings", lines=side.findings)
        )
    return [block for block in found if (block.rows if isinstance(block, Table) else block.lines)]


def run_line(side: Side) -> str:
    """Which run, model, server, window and machine: `laptop (3XQ9ZK, 2026-10-05 14:02): qwen2.5:3b Q4_K_M, …`."""
    run = side.run
    parts = [
        side.model_name,
        plain(side.server, ""),
        f"window {format_count(side.window)}" if side.window else "",
        side.machine_line,
    ]
    name = plain(run.tag, "run")
    return f"{name} ({run.id[-6:]}, {plain(run.started_utc)[:16].replace('T', ' ')}): {', '.join(filter(None, parts))}"


def difference_table(report: Report) -> Table:
    """What differs between the runs and what it does to the rows; for one run, what to be careful about."""
    sides = report.sides
    return Table(
        title="May I compare?" if len(sides) > 1 else "Careful",
        columns=("", *(side.label for side in sides), "so"),
        rows=[[fact.name, *fact.shown, _consequence(fact)] for fact in report.differences],
        left=frozenset(range(len(sides) + 2)),
    )


def mark_lines(report: Report) -> Lines:
    """What each run noted while it measured: low memory, another model loaded, a window other than asked."""
    several = len(report.sides) > 1
    lines = [f"{side.label}: {mark}" if several else mark for side in report.sides for mark in side.marks]
    return Lines(title="Noted while measuring", lines=lines)


def _consequence(fact: Fact) -> str:
    where = f" ({', '.join(fact.experiments)})" if fact.experiments else ""
    return f"{fact.mark}: {fact.why}{where}" if fact.why else ""


def prediction_table(report: Report) -> Table:
    """What a person will wait, one line per question and a column per run."""
    return Table(
        title="What it will feel like",
        columns=("", *(side.label for side in report.sides)),
        rows=[[question(p), *(answer(p, guess) for guess in p.guesses)] for p in report.predictions],
    )


def question(prediction: Prediction) -> str:
    if prediction.name == "paste_wait_ns":
        return f"wait for a paste of {format_count(prediction.tokens)} tokens"
    return {
        "largest_paste_tokens": "largest paste for a wait of 5 s",
        "users_within_10_s": "users before the last one waits over 10 s",
    }[prediction.name]


def answer(prediction: Prediction, guess: Guess | None) -> str:
    if guess is None:
        return MISSING
    if guess.value is None:
        return "beyond what was measured"
    if prediction.name == "paste_wait_ns":
        return format_seconds(guess.value / 1e9)
    if prediction.name == "users_within_10_s":
        return {"<": "not even 1", ">": f"{guess.value:.0f} or more"}.get(guess.bound, f"{guess.value:.0f}")
    return {"<": "under ", ">": "over "}.get(guess.bound, "") + f"{format_count(round(guess.value))} tokens"
