"""The self-test: a bench against a fake server of known figures shows how far off llmlab's own are on this machine."""

import io
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from llmlab.bench import Bench, BenchOptions, run_bench
from llmlab.call import Call
from llmlab.client import Client
from llmlab.errors import Exit
from llmlab.fake import FakeServer, Figures, Served
from llmlab.figures import MISSING, format_percent, format_value
from llmlab.listing import Format, print_listing
from llmlab.machine import Machine
from llmlab.run import Run
from llmlab.settings import find_server
from llmlab.store import Store

FIGURES = Figures(load_ns=300_000_000, prefill_tokens_per_s=4_000, decode_gap_ns=5_000_000, slots=2, window=768)
OPTIONS = BenchOptions(num_ctx=1024, sizes=(100, 600), users=(1, 2, 4), turns=(2, 12), num_predict=24, repeat=1)
CLOSE, CLOSE_NS = 0.02, 5_000_000
"""A figure is right within 2 % or 5 ms."""
COLUMNS = ("figure", "truth", "llmlab says", "off by", "")


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure beside the truth; its name's ending tells the unit: `…_ns`, `…_per_s`, else a count."""

    what: str
    name: str
    truth: float | None
    said: float | None

    @property
    def right(self) -> bool:
        if self.truth is None or self.said is None:
            return self.truth is self.said
        off = abs(self.said - self.truth)
        return off <= CLOSE * abs(self.truth) or (self.name.endswith("_ns") and off <= CLOSE_NS)

    def _off(self) -> str:
        if self.truth is None or self.said is None:
            return MISSING
        off = self.said - self.truth
        share = format_percent(off / (self.truth or 1), sign=True)
        return f"{off / 1e6:+.1f} ms, {share}" if self.name.endswith("_ns") else share

    def row(self) -> dict[str, str]:
        return {
            "figure": self.what,
            "truth": format_value(self.name, self.truth),
            "llmlab says": format_value(self.name, self.said),
            "off by": self._off(),
            "": "right" if self.right else "WRONG",
        }


async def selftest() -> Exit:
    """Print every figure beside the truth. Exit 1 where one is off by more than 2 % and 5 ms."""
    print("measuring a fake server of known speed, about 5 s", file=sys.stderr)
    with FakeServer(FIGURES, process=True) as fake:
        run, calls = await _measured(fake)
        compared = compare(run, calls, fake.served)
    print_listing([c.row() for c in compared], COLUMNS, Format.table, sys.stdout)
    wrong = [c.what for c in compared if not c.right]
    print(f"\n{'Not right: ' + ', '.join(wrong) if wrong else 'Every figure is right within 2 % or 5 ms'}")
    return Exit.FAILED if wrong else Exit.OK


async def _measured(fake: FakeServer) -> tuple[Run, list[Call]]:
    """Bench the fake into a database that is thrown away."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "selftest.db") as store:
        async with Client(find_server(fake.url, "ollama", {}), timeout_s=60) as client:
            setup = Bench(
                client=client,
                store=store,
                model=await client.model(fake.model),
                facts=await client.server_facts(),
                machine=Machine(id="selftest"),
                err=io.StringIO(),
            )
            run = await run_bench(OPTIONS, setup)
        return store.runs("bench")[0], sorted(store.calls(run.id), key=lambda c: (c.started_utc, c.id))


def compare(run: Run, calls: Sequence[Call], served: Sequence[Served]) -> list[Compared]:
    """`calls` and `served` are the same requests in the order they were made."""
    both = list(zip(calls, served, strict=True))
    found = [Compared("load", "_ns", FIGURES.load_ns, calls[0].load_ns)]
    for size in OPTIONS.sizes or ():
        found += _speed(f"{size} tokens", [b for b in both if _is(b[0], "prompt_length", size)])
    for users in OPTIONS.users or ():
        found += _burst(f"{users} at once", [b for b in both if _is(b[0], "users", users)])
    found.append(Compared("slots", "", FIGURES.slots, run.slots))
    found.append(Compared("window loaded", "", FIGURES.window, run.num_ctx_loaded))
    (overflow,) = [b for b in both if _is(b[0], "overflow", 12) and b[0].variant == "no_budget"]
    found.append(Compared("tokens read after a cut", "", overflow[1].read_tokens, overflow[0].prompt_tokens))
    found.append(Compared("cuts proved", "", 1, sum(c.cut == "proved" for c in calls)))
    return found


def _is(call: Call, experiment: str, size: int) -> bool:
    return call.purpose == "measured" and (call.experiment, call.size) == (experiment, size)


def _speed(what: str, both: Sequence[tuple[Call, Served]]) -> list[Compared]:
    ((call, true),) = both
    prefill = (true.read_tokens - true.cached_tokens) / true.prefill_ns * 1e9
    decode = true.output_tokens / true.decode_ns * 1e9
    return [
        Compared(f"{what}: first token", "_ns", true.ttft_ns, call.ttft_ns),
        Compared(f"{what}: prompt tokens", "", true.read_tokens, call.prompt_tokens),
        Compared(f"{what}: prefill", "_per_s", prefill, call.prefill_tokens_per_s),
        Compared(f"{what}: decode", "_per_s", decode, call.decode_tokens_per_s),
    ]


def _burst(what: str, both: Sequence[tuple[Call, Served]]) -> list[Compared]:
    true = [s.ttft_ns for _, s in both if s.ttft_ns is not None]
    said = [c.ttft_ns for c, _ in both if c.ttft_ns is not None]
    return [
        Compared(f"{what}: median first token", "_ns", median(true), median(said)),
        Compared(f"{what}: worst first token", "_ns", max(true), max(said)),
    ]
