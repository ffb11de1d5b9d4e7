"""A recorded run: its row in the store around what a command does, closed with its outcome whatever happens."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from llmlab.call import utc_now
from llmlab.machine import load_average, power_source, this_machine
from llmlab.run import Run
from llmlab.settings import data_folder
from llmlab.store import Store
from llmlab.target import Target


@asynccontextmanager
async def recorded(
    store: Store,
    target: Target,
    command: str,
    *,
    tag: str | None,
    num_ctx: int | None,
    options: Mapping[str, Any] | None = None,
) -> AsyncIterator[str]:
    """The id of a run that ends `ok`, `interrupted` by Ctrl-C, or `failed`."""
    machine = await asyncio.to_thread(this_machine, data_folder())  # a GPU's tool may take seconds
    store.save_machine(machine)
    store.save_model(target.model)
    run = Run(
        command=command,
        tag=tag,
        machine_id=machine.id,
        model_id=target.model.id,
        server_kind=target.facts.kind,
        server_version=target.facts.version,
        num_ctx=num_ctx,
        power=power_source(),
        load_average=load_average(),
        options_json=json.dumps(dict(options or {})),
    )
    store.start_run(run)
    outcome = "failed"
    try:
        yield run.id
        outcome = "ok"
    except (asyncio.CancelledError, KeyboardInterrupt):
        outcome = "interrupted"
        raise
    finally:
        store.update_run(run.id, outcome=outcome, finished_utc=utc_now())
