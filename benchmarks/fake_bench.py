"""A bench of the fake server, in silence: what `bench_share.py` and `lag.py` look at."""

import io

from llmlab.bench import Bench, BenchOptions, run_bench
from llmlab.client import Client
from llmlab.fake import FakeServer
from llmlab.machine import Machine
from llmlab.run import Run
from llmlab.settings import find_server
from llmlab.store import Store


async def bench_fake(fake: FakeServer, store: Store, asked: BenchOptions) -> Run:
    """Bench `fake` into `store`."""
    async with Client(find_server(fake.url, "ollama", {})) as client:
        setup = Bench(
            client=client,
            store=store,
            model=await client.model(fake.model),
            facts=await client.server_facts(),
            machine=Machine(id="benchmark"),
            out=io.StringIO(),
            err=io.StringIO(),
        )
        await run_bench(asked, setup)
    return store.runs("bench")[0]
