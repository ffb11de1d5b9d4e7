"""`llmlab bench`: connect, measure each model as a run of its own, print."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmlab.bench.options import BenchOptions
from llmlab.bench.run import Bench, run_bench
from llmlab.client import Client
from llmlab.errors import Exit, LabError, UsageError
from llmlab.run import Run
from llmlab.settings import data_folder, database_path
from llmlab.store import Store
from llmlab.target import Choice, choose_model, open_server

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
    """Run the command; a model that cannot be measured does not keep the next ones from it. Raises LabError."""
    with Store.open(database_path(settings.db)) as store:
        resume = _resumed(store, settings.resume) if settings.resume else None
        models: Sequence[str | None] = settings.models or [_model_name(store, resume)]
        runs: list[Run] = []
        codes: set[Exit] = set()
        async with open_server(settings.choice, _say) as client:
            for name in models:
                try:
                    runs.append(await _measure(settings, store, client, name, resume, name != models[-1]))
                except LabError as error:
                    if len(models) == 1:
                        raise
                    _say(f"Error: {error}")
                    codes.add(error.exit_code)
    if settings.form != "table":
        _report(settings, runs)
    codes |= {Exit.FAILED for run in runs if run.outcome != "ok"}
    return max(codes, default=Exit.OK)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


async def _measure(
    settings: BenchSettings, store: Store, client: Client, name: str | None, resume: Run | None, unload: bool
) -> Run:
    from llmlab.machine import this_machine

    model = await choose_model(client, name, _say)
    api = await client.api()
    setup = Bench(
        client=client,
        store=store,
        model=model,
        facts=await client.server_facts(),
        machine=this_machine(data_folder()),
        api=api,
        window=await client.window(model.name) if api == "openai" else None,
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
