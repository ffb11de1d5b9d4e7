"""Whole bench runs against a fake server, with what was stored, printed and truly done."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.bench import Bench, BenchOptions, run_bench
from llmlab.call import Call
from llmlab.cells import Cell, cells
from llmlab.client import Client
from llmlab.fake import FakeServer, Figures, Served
from llmlab.machine import Machine
from llmlab.run import Run
from llmlab.settings import find_server
from llmlab.store import Store

FAST: dict[str, Any] = {"prefill_tokens_per_s": 50_000, "decode_gap_ns": 1_000_000}
SMALL: dict[str, Any] = {"num_ctx": 1024, "sizes": (100, 300, 600), "users": (1, 2, 4), "num_predict": 16, "repeat": 1}


@dataclass(kw_only=True)
class Done:
    """A finished run; `served` by call id is what the fake truly did for that call."""

    run: Run
    calls: list[Call]
    served: dict[str, Served]
    all_served: list[Served]
    requests: list[str]
    out: str
    err: str

    @property
    def found(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run.findings_json or "{}")
        return found

    def cells(self, experiment: str) -> list[Cell]:
        return [cell for cell in cells(self.calls) if cell.experiment == experiment]

    def cell(self, experiment: str, variant: str | None = None, size: int | None = None) -> Cell:
        (cell,) = [c for c in self.cells(experiment) if c.variant == variant and size in (None, c.size)]
        return cell

    def measured(self, experiment: str, variant: str | None = None) -> list[Call]:
        wanted = (experiment, variant)
        return [c for c in self.calls if c.purpose == "measured" and (c.experiment, c.variant) == wanted]


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    with Store.open(path) as store:
        yield store


async def bench_of(client: Client, store: Store, model: str, out: io.StringIO, err: io.StringIO) -> Bench:
    api = await client.api()
    return Bench(
        client=client,
        store=store,
        model=await client.model(model),
        facts=await client.server_facts(),
        machine=Machine(id="01TESTMACHINE"),
        api=api,
        window=await client.window(model),
        out=out,
        err=err,
    )


async def bench(
    tmp_path: Path, figures: Figures, *experiments: str, total_s: float | None = None, **options: Any
) -> Done:
    """Run the bench; the options are small ones unless said."""
    asked = BenchOptions(**{**SMALL, "experiments": experiments, "keep_text": True, **options})
    with FakeServer(figures) as fake, opened(tmp_path / "lab.db") as store:
        async with Client(find_server(fake.url, "auto", {}), total_s=total_s) as client:
            out, err = io.StringIO(), io.StringIO()
            run = await run_bench(asked, await bench_of(client, store, fake.model, out, err))
        return done(fake, store, run, out, err)


def done(fake: FakeServer, store: Store, run: Run, out: io.StringIO, err: io.StringIO) -> Done:
    """What is stored of the run, beside what the fake did."""
    store.flush()
    texts = {row["call_id"]: row["prompt_json"] for row in store.db["texts"].rows}
    by_prompt: dict[str, list[Served]] = {}
    for served in fake.served:
        by_prompt.setdefault(json.dumps(served.body.get("messages")), []).append(served)
    calls = store.calls(run.id)
    matched = {c.id: by_prompt[json.dumps(json.loads(texts[c.id]))].pop(0) for c in calls if c.outcome != "cancelled"}
    return Done(
        run=store.find_run(run.id),
        calls=calls,
        served=matched,
        all_served=fake.served,
        requests=fake.requests,
        out=out.getvalue(),
        err=err.getvalue(),
    )
