"""`llmlab bench`: connect, measure each model as a run of its own, print."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmlab.bench.options import BenchOptions
from llmlab.bench.run import Bench, run_bench
from llmlab.errors import Exit, UsageError
from llmlab.run import Run
from llmlab.settings import data_folder, database_path
from llmlab.store import Store
from llmlab.target import Choice, Target, choose_model, open_target

NEWEST = "newest"
QUICK_NUM_CTX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What the command line asked for. `resume` is a run's id, or `newest`: the last one that did not finish."""

    choice: Choice
    options: BenchOptions
    models: Sequence[str] = ()
    db: Path | None = None
    resume: str | None = None
    form: str = "table"


async def bench(settings: BenchSettings) -> Exit:
    """Run the command. Raises LabError; what was measured by then is in the database."""
    with Store.open(database_path(settings.db)) as store:
        resume = _resumed(store, settings.resume) if settings.resume else None
        models: Sequence[str | None] = settings.models or [_model_name(store, resume)]
        async with open_target(_choice(settings, models[0]), _say) as target:
            runs = [await _measure(settings, store, target, name, resume, name != models[-1]) for name in models]
    if settings.form != "table":
        _report(settings, runs)
    return Exit.OK if all(run.outcome == "ok" for run in runs) else Exit.FAILED


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _choice(settings: BenchSettings, model: str | None) -> Choice:
    """With `--resume` the model is the earlier run's, which does not forbid the embedded engine as `-m` does."""
    from dataclasses import replace

    return replace(settings.choice, model=model if settings.models else None)


async def _measure(
    settings: BenchSettings, store: Store, target: Target, name: str | None, resume: Run | None, unload: bool
) -> Run:
    from llmlab.machine import this_machine

    model = target.model if name is None else await choose_model(target.client, name, _say)
    setup = Bench(
        client=target.client,
        store=store,
        model=model,
        facts=target.facts,
        machine=this_machine(data_folder()),
        api=target.api,
        window=target.window,
        unload=unload,
        out=sys.stdout if settings.form == "table" else None,
        err=sys.stderr,
    )
    return await run_bench(settings.options, setup, resume)


def _resumed(store: Store, word: str) -> Run:
    if word != NEWEST:
        return store.find_run(word, "bench")
    for run in store.runs("bench"):
        if run.outcome != "ok":
            return run
    raise UsageError("there is no bench run to resume", "Start one with: llmlab bench")


def _model_name(store: Store, resume: Run | None) -> str | None:
    model = store.model(resume.model_id) if resume else None
    return model.name if model else None


def _report(settings: BenchSettings, runs: Sequence[Run]) -> None:
    from llmlab.report import report

    with Store.read(database_path(settings.db)) as store:
        report(store, [run.id for run in runs], format=settings.form)
