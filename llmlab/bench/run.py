"""run_bench: one run of the bench on one model, from the precheck to the findings."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from llmlab import machine as computer
from llmlab.anchors import drift_fraction, noise_floor
from llmlab.bench.anchor import anchor, last_anchor
from llmlab.bench.expected import remaining_s, sample_s
from llmlab.bench.options import BenchOptions
from llmlab.bench.overflow import overflow
from llmlab.bench.plan import BENCH_VERSION, Plan, left_out, make_plan
from llmlab.bench.precheck import check_machine, check_spill
from llmlab.bench.progress import Progress
from llmlab.bench.prompt_length import prompt_length
from llmlab.bench.repeat_prompt import repeat_prompt
from llmlab.bench.sampling import tally
from llmlab.bench.screen import print_findings, print_table
from llmlab.bench.session import Session
from llmlab.bench.tables import experiment_table, slots_of
from llmlab.bench.users import users
from llmlab.bench.warmup import warm_up
from llmlab.call import utc_now
from llmlab.errors import LabError, UsageError
from llmlab.figures import format_percent
from llmlab.findings import findings
from llmlab.garbage import frozen_heap
from llmlab.model import Model, ServerFacts
from llmlab.run import Run

if TYPE_CHECKING:
    from llmlab.client import Client
    from llmlab.machine import Machine
    from llmlab.store import Store

EXPERIMENTS: dict[str, Callable[[Session], Awaitable[None]]] = {
    "prompt_length": prompt_length,
    "repeat_prompt": repeat_prompt,
    "users": users,
    "overflow": overflow,
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a run needs besides its options: the server, the model, the computer, and where to print.

    `window` is the server's own where it tells one (OpenAI wire). Without `out` no tables and findings are printed.
    `unload` frees the model's memory at the end, for the next model's run.
    """

    client: "Client"
    store: "Store"
    model: Model
    facts: ServerFacts
    machine: "Machine"
    api: str = "ollama"
    window: int | None = None
    unload: bool = False
    out: TextIO | None = None
    err: TextIO | None = None


async def run_bench(options: BenchOptions, bench: Bench, resume: Run | None = None) -> Run:
    """Measure; return the finished run, whose outcome is `ok`, or `failed` where a cell has nothing to show.

    Every call is a row at once. `resume` is an earlier run whose plan is carried on: its options count, not these.
    Raises UsageError before anything is sent, and what stopped the run after its rows are saved: LabError, and on
    Ctrl-C what asyncio raises, with a line that says how to resume.
    """
    plan = resumed_plan(resume, bench.model) if resume else plan_for(options, bench)
    run = replace(resume, outcome=None, finished_utc=None) if resume else new_run(options, plan, bench)
    with frozen_heap(), Progress(bench.err) as progress:
        session = Session(
            client=bench.client,
            store=bench.store,
            run=run,
            plan=plan,
            model=bench.model,
            api=bench.api,
            progress=progress,
            keep_text=options.keep_text,
            calls=bench.store.calls(run.id) if resume else [],
        )
        begin(session, bench, resume)
        if not resume:
            say_window(session, options, bench)
        return await conduct(session, bench)


def plan_for(options: BenchOptions, bench: Bench) -> Plan:
    """A new run's plan on this server and model."""
    return make_plan(options, window=bench.window, model_context=bench.model.context_length)


def say_window(session: Session, options: BenchOptions, bench: Bench) -> None:
    """What the window, or not knowing it, does to the plan."""
    window = f"{session.plan.num_ctx:,} tokens"
    if bench.api == "openai" and not bench.window and not options.num_ctx:
        session.mark(f"the server does not tell its window: {window} are assumed (say another with --num-ctx)")
    elif options.num_ctx and options.num_ctx > session.plan.num_ctx and not bench.window:
        session.mark(f"this model's longest window is {window}, not the {options.num_ctx:,} asked")
    sizes = ", ".join(f"{size:,}" for size in left_out(options, session.plan))
    if sizes:
        session.mark(f"prompts of {sizes} tokens do not fit into the window of {window}: left out")


def resumed_plan(run: Run, model: Model) -> Plan:
    """The plan of an earlier run, if it can be carried on with this model."""
    if run.command != "bench" or not run.plan_json:
        raise UsageError(f"run {run.id[-6:]} is not a bench run", "See: llmlab runs")
    if run.outcome == "ok":
        raise UsageError(f"run {run.id[-6:]} is complete", "Start a new one with: llmlab bench")
    if run.bench_version != BENCH_VERSION:
        raise UsageError(
            f"run {run.id[-6:]} was measured by another version of the bench", "Start a new one with: llmlab bench"
        )
    if run.model_id != model.id:
        raise UsageError(
            f"run {run.id[-6:]} measured another model or other weights than {model.name}",
            "Resume it with the same -m on the same server",
        )
    return Plan.from_json(run.plan_json)


def new_run(options: BenchOptions, plan: Plan, bench: Bench) -> Run:
    return Run(
        command="bench",
        tag=options.tag,
        machine_id=bench.machine.id,
        model_id=bench.model.id,
        server_kind=bench.facts.kind,
        server_version=bench.facts.version,
        num_ctx=plan.num_ctx,
        power=computer.power_source(),
        load_average=computer.load_average(),
        seed=plan.seed,
        options_json=json.dumps({**asdict(options), "num_predict": plan.num_predict}),
        plan_json=plan.to_json(),
        bench_version=BENCH_VERSION,
    )


def begin(session: Session, bench: Bench, resume: Run | None) -> None:
    """Make the run's row, so that its calls have one whatever happens."""
    if resume:
        session.store.update_run(session.run.id, outcome=None, finished_utc=None)
        session.marks += json.loads(resume.findings_json or "{}").get("marks", [])
        return
    session.store.save_machine(bench.machine)
    session.store.save_model(bench.model)
    session.store.start_run(session.run)


async def conduct(session: Session, bench: Bench) -> Run:
    """Run the plan; whatever ends it, what was measured is saved before anything is said."""
    outcome, notice, limit_s = "interrupted", "", session.client.total_s
    try:
        await play(session, bench)
        outcome = "failed" if empty_cells(session) else "ok"
    except LabError:
        outcome = "failed"
        notice = resume_line(session, "stopped")
        raise
    except BaseException:
        notice = resume_line(session, "interrupted")
        raise
    finally:
        session.client.total_s = limit_s
        finish(session, outcome)
        session.store.flush()
        if notice:
            session.progress.note(notice)
    if bench.out:
        with session.progress.aside():
            print_findings(findings(session.calls, session.run), [*session.marks, *steadiness(session)], bench.out)
    return session.run


async def play(session: Session, bench: Bench) -> None:
    """Precheck, warm-up, then each experiment between two anchors."""
    await check_machine(session)
    await warm_up(session)
    check_spill(session)
    await anchor(session, "at the start")
    for experiment in session.plan.experiments:
        await keep_loaded(session)
        session.progress.expect(remaining_s(session))
        session.limit_calls(max(sample_s(session, cell) for cell in session.plan.cells(experiment)))
        await EXPERIMENTS[experiment](session)
        note_slots(session)
        await session.store.saved()
        if bench.out:
            with session.progress.aside():
                print_table(experiment_table(session, experiment), bench.out)
        if experiment != session.plan.experiments[-1]:
            await anchor(session, f"after {experiment}")
    await last_anchor(session, bench.unload)


async def keep_loaded(session: Session) -> None:
    """A model that went out of memory since is warmed up again, outside of every figure."""
    loaded = await session.loaded()
    if loaded is not None and not any(map(session.is_ours, loaded)):
        session.mark("the model was unloaded in mid-run (another client?); warmed up again")
        await warm_up(session)


def note_slots(session: Session) -> None:
    slots = slots_of(session.calls)
    if slots:
        session.run = replace(session.run, slots=slots.count)
        session.store.update_run(session.run.id, slots=slots.count)


def empty_cells(session: Session) -> bool:
    """Whether a planned cell has no good sample."""
    cells = [c for c in session.plan.cells() if session.ollama or c.variant != "truncate_false"]
    return any(not tally(session, cell).samples for cell in cells)


def finish(session: Session, outcome: str) -> None:
    """Write how the run ended and what it found."""
    slots = slots_of(session.calls)
    found = {
        "findings": findings(session.calls, session.run),
        "drift": drift_fraction(session.calls),
        "noise_floor": noise_floor(session.calls),
        "slots_at_least": slots.at_least if slots else None,
        "marks": session.marks,
    }
    columns: Any = {"outcome": outcome, "finished_utc": utc_now(), "findings_json": json.dumps(found)}
    session.run = replace(session.run, **columns)
    session.store.update_run(session.run.id, **columns)


def steadiness(session: Session) -> list[str]:
    """Drift and noise floor in one line."""
    drift, noise = drift_fraction(session.calls), noise_floor(session.calls)
    if drift is None or noise is None:
        return []
    course = "slower" if drift > 0 else "faster"
    moved = (
        f"the machine became {format_percent(abs(drift))} {course} during the run" if round(drift, 2) else "no drift"
    )
    return [f"{moved}; one call differs from the next by up to {format_percent(noise)} (noise floor)"]


def resume_line(session: Session, word: str) -> str:
    """What a run that stopped early leaves, and how to go on; empty where it has measured nothing."""
    done = sum(1 for c in session.calls if c.purpose == "measured" and c.outcome != "cancelled")
    if not done:
        return ""
    kept = "1 measured call is" if done == 1 else f"{done} measured calls are"
    return f"{word}: {kept} kept. Go on with: llmlab bench --resume {session.run.id[-6:]}"
