"""What recording costs: time per call, time on the event loop, bytes on disk; beside the floor, in one run.

    python benchmarks/recording.py [--calls 20000]

The floor is sqlite3 alone: the same rows, ready as tuples, in transactions of the same size. Three ways to record:
`burst` queues all calls and waits once, as fast as the writer goes; `one by one` waits for each call to be durable, as
a conversation does; `on the loop` is what `add` itself takes, which is all that a running stream can feel.
Figures are medians of `--rounds` rounds; every round has a file of its own. The last line is the same as JSON.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from llmlab.call import Call, new_id
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store
from llmlab.store.connection import open_writable
from llmlab.store.rows import CALL_COLUMNS
from llmlab.store.writer import BATCH

MACHINE = Machine(id=new_id(), os="Linux", cpu="a processor")
MODEL = Model(name="qwen2.5:3b", digest="3" * 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="calls in a burst (20000)")
    parser.add_argument("--one-by-one", type=int, default=2_000, help="calls recorded one by one (2000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    options = parser.parse_args()
    ways: dict[str, Callable[[Path], dict[str, float]]] = {
        "floor: sqlite3 alone": lambda path: floor(path, options.calls),
        "burst": lambda path: burst(path, options.calls),
        "one by one": lambda path: asyncio.run(one_by_one(path, options.one_by_one)),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(way(Path(folder) / "lab.db"))
    medians = {
        name: {key: statistics.median(r[key] for r in rounds) for key in rounds[0]} for name, rounds in found.items()
    }
    for name, figures in medians.items():
        print(f"{name:22}", ", ".join(f"{value:8.1f} {key}" for key, value in figures.items()))
    print("targets: 200 µs a call, none of it on the event loop; 500 bytes a call on disk")
    print(json.dumps(medians))


def typical_calls(count: int, run: Run) -> list[Call]:
    """Calls with every field that a measured call on Ollama has."""
    return [
        Call(
            run_id=run.id,
            seq=seq,
            model_id=MODEL.id,
            num_ctx=4096,
            num_ctx_loaded=4096,
            purpose="measured",
            experiment="prompt_length",
            size=(100, 1000, 3000)[seq % 3],
            repeat=seq // 3,
            prompt_chars=12_345,
            prompt_tokens_estimate=3_086,
            messages_sent=2,
            messages_pinned=0,
            messages_dropped=0,
            prompt_tokens=3_012,
            cache_state="cold",
            output_tokens=128,
            pieces=128,
            connect_ns=300_000 + seq,
            ttft_ns=7_012_345_678 + seq,
            ttft_answer_ns=7_012_345_678 + seq,
            last_piece_ns=12_012_345_678 + seq,
            stall_max_ns=80_123_456 + seq,
            total_ns=12_112_345_678 + seq,
            server_total_ns=12_102_345_678 + seq,
            load_ns=12_345_678 + seq,
            prefill_ns=6_912_345_678 + seq,
            prefill_source="server",
            decode_ns=5_012_345_678 + seq,
            in_flight=0,
            cut="no",
            done_reason="length",
            http_status=200,
            timing_source="socket",
            prompt_hash="0123456789abcdef",
        )
        for seq in range(count)
    ]


def start(store: Store) -> Run:
    run = Run(command="bench", tag="recording", machine_id=MACHINE.id, model_id=MODEL.id)
    store.save_machine(MACHINE)
    store.save_model(MODEL)
    store.start_run(run)
    store.flush()
    return run


def burst(path: Path, count: int) -> dict[str, float]:
    with Store.open(path) as store:
        calls = typical_calls(count, start(store))
        began, cpu = time.perf_counter(), time.process_time()
        for call in calls:
            store.add(call)
        queued = time.perf_counter()
        store.flush()
        ended, used = time.perf_counter(), time.process_time() - cpu
    return {
        "µs a call": (ended - began) / count * 1e6,
        "µs CPU a call": used / count * 1e6,
        "µs on the loop": (queued - began) / count * 1e6,
        "bytes a call": path.stat().st_size / count,
    }


async def one_by_one(path: Path, count: int) -> dict[str, float]:
    on_loop = []
    with Store.open(path) as store:
        calls = typical_calls(count, start(store))
        began, cpu = time.perf_counter(), time.process_time()
        for call in calls:
            before = time.perf_counter()
            store.add(call)
            on_loop.append(time.perf_counter() - before)
            await store.saved()
        ended, used = time.perf_counter(), time.process_time() - cpu
    return {
        "µs a call": (ended - began) / count * 1e6,
        "µs CPU a call": used / count * 1e6,
        "µs on the loop": statistics.median(on_loop) * 1e6,
        "bytes a call": path.stat().st_size / count,
    }


def floor(path: Path, count: int) -> dict[str, float]:
    """The same rows without llmlab: no records, no checks of values, no thread."""
    with Store.open(path) as store:
        rows = [tuple(call.row().values()) for call in typical_calls(count, start(store))]
    marks = ", ".join("?" * len(CALL_COLUMNS))
    connection = open_writable(path, 30.0)
    began, cpu = time.perf_counter(), time.process_time()
    for first in range(0, count, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            f"INSERT INTO calls ({', '.join(CALL_COLUMNS)}) VALUES ({marks})", rows[first : first + BATCH]
        )
        connection.execute("COMMIT")
    ended, used = time.perf_counter(), time.process_time() - cpu
    connection.close()
    return {
        "µs a call": (ended - began) / count * 1e6,
        "µs CPU a call": used / count * 1e6,
        "µs on the loop": (ended - began) / count * 1e6,
        "bytes a call": path.stat().st_size / count,
    }


if __name__ == "__main__":
    main()
