"""How much of a bench run is the bench's own: the share of its wall time in which no call is under way.

    python benchmarks/bench_share.py [--db FILE --run RUN]

Without a database it benches the fake server, in a process of its own, at the speed of a slow laptop. With one it looks
at a run that was measured. The last line of the output is the same as one JSON object.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from fake_bench import bench_fake

from llmlab.bench import BenchOptions
from llmlab.call import Call
from llmlab.fake import FakeServer, Figures
from llmlab.run import Run
from llmlab.store import Store

LAPTOP = Figures(load_ns=800_000_000, prefill_tokens_per_s=400, decode_gap_ns=30_000_000, slots=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path)
    parser.add_argument("--run", help="tag or run id")
    args = parser.parse_args()
    if args.db:
        with Store.read(args.db) as store:
            run = store.find_run(args.run, "bench") if args.run else store.runs("bench", limit=1)[0]
            calls = store.calls(run.id)
    else:
        run, calls = asyncio.run(measured())
    wall_s, own_s = spent(run, calls)
    print(
        f"{len(calls)} calls in {wall_s:.1f} s, of which {own_s:.2f} s without a call under way: {own_s / wall_s:.2%}"
    )
    print(json.dumps({"calls": len(calls), "wall_s": wall_s, "own_s": own_s, "own_share": own_s / wall_s}))


async def measured() -> tuple[Run, list[Call]]:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "lab.db") as store:
        with FakeServer(LAPTOP, process=True) as fake:
            run = await bench_fake(fake, store, BenchOptions(quick=True))
        return run, store.calls(run.id)


def spent(run: Run, calls: Sequence[Call]) -> tuple[float, float]:
    """Wall seconds of the run, and those of them in which no call was under way."""
    wall_s = moment_s(run.finished_utc or "") - moment_s(run.started_utc)
    covered_s = 0.0
    end_s = moment_s(run.started_utc)
    for call in sorted(calls, key=lambda c: c.started_utc):
        start_s = moment_s(call.started_utc)
        stop_s = start_s + ((call.connect_ns or 0) + (call.total_ns or 0)) / 1e9
        covered_s += max(0.0, stop_s - max(start_s, end_s))
        end_s = max(end_s, stop_s)
    return wall_s, max(0.0, wall_s - covered_s)


def moment_s(utc: str) -> float:
    return datetime.fromisoformat(utc).timestamp()


if __name__ == "__main__":
    main()
