"""Does llmlab say when it could not keep up? Bursts of users on a quiet machine, and beside a busy process.

    python benchmarks/lag.py [--rounds 3] [--users 1,4,16,64]

Each round benches the fake server, which runs in a process of its own and keeps its own times, three ways: on a quiet
machine; beside a process that only counts, where the system may move llmlab to another core; and on one core together
with that process. A burst is marked where the event loop was late by more than 2 % of what was measured.

The error is how far a TTFT of a burst lies above the server's own, at worst, in percent. The last line of the output is
the same as one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_bench import bench_fake
from mock import fast_run  # noqa: UP026

from llmlab.bench import BenchOptions
from llmlab.call import Call, has_flag
from llmlab.client.record import prompt_hash
from llmlab.fake import FakeServer, Figures, Served
from llmlab.messages import Message
from llmlab.store import Store

SERVER = Figures(load_ns=0, prefill_tokens_per_s=250, decode_gap_ns=10_000_000, slots=64)
QUIET, BESIDE, TOGETHER = "quiet", "one core busy", "our own core busy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--users", type=lambda text: tuple(int(n) for n in text.split(",")), default=(1, 4, 16, 64))
    args = parser.parse_args()
    ways = [QUIET, BESIDE, *([TOGETHER] if hasattr(os, "sched_setaffinity") else [])]
    rows = []
    for number in range(args.rounds):
        for way in ways:
            rows.append({"round": number + 1, "machine": way, **fast_run(measured(way, args.users))})
    print(table(rows))
    print(json.dumps({"users": args.users, "rows": rows}))


@contextmanager
def busy(way: str) -> Iterator[None]:
    """Another process that counts, on the one core that is left to us where it is to be together with us."""
    if way == QUIET:
        yield
        return
    cores = os.sched_getaffinity(0) if way == TOGETHER else set()
    try:
        if cores:
            os.sched_setaffinity(0, {min(cores)})  # what is started from here on inherits it
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as counting:
            try:
                yield
            finally:
                counting.kill()
    finally:
        if cores:
            os.sched_setaffinity(0, cores)


async def measured(way: str, users: tuple[int, ...]) -> dict[str, Any]:
    asked = BenchOptions(experiments=("users",), users=users, repeat=5, num_predict=64, seed=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder) / "lab.db") as store,
        FakeServer(SERVER, process=True) as fake,
        busy(way),
    ):
        run = await bench_fake(fake, store, asked)
        return judged(store.calls(run.id), fake.served)


def judged(calls: Iterable[Call], served: Iterable[Served]) -> dict[str, Any]:
    """How many bursts there were and were marked, and the worst error of either kind."""
    true_ns = {hash_of(known): known.ttft_ns for known in served}
    bursts: dict[tuple[Any, Any], list[Call]] = defaultdict(list)
    for call in calls:
        if call.experiment == "users" and call.purpose == "measured":
            bursts[call.size, call.repeat].append(call)
    errors: dict[bool, list[float]] = {False: [], True: []}
    for burst in bursts.values():
        marked = any(has_flag(call, "lag") for call in burst)
        errors[marked].append(max(100 * ((c.ttft_ns or 0) / (true_ns[c.prompt_hash] or 1) - 1) for c in burst))
    return {
        "bursts": len(bursts),
        "marked": len(errors[True]),
        "worst_error_percent": max(errors[False], default=None),
        "worst_error_marked_percent": max(errors[True], default=None),
    }


def hash_of(served: Served) -> str:
    return prompt_hash([Message(m["role"], m["content"]) for m in served.body["messages"]])


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| round | machine | bursts | marked | worst TTFT error: not marked | marked |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        unmarked, marked = (
            "–" if row[key] is None else f"{row[key]:.1f} %"
            for key in ("worst_error_percent", "worst_error_marked_percent")
        )
        lines.append(
            f"| {row['round']} | {row['machine']} | {row['bursts']} | {row['marked']} | {unmarked} | {marked} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
