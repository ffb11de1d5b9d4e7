"""How long `llmlab report` takes over a database with a million calls.

Most rows are what everyday use leaves behind: chats and served requests of many runs, and some hundred bench runs in
between. The report reads two of those. The file is built once and kept; the times are of whole processes, as a person
waits for them, each format `--rounds` times.

    python benchmarks/report_million.py [--calls 1000000] [--rounds 5] [--db FILE]
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from llmlab.call import Call, new_id
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store

TARGET_S = 1.5
CALLS_PER_RUN = 2_000
SIZES, USERS, TURNS = (100, 1000, 3000), (1, 2, 4, 8), (2, 6, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--db", type=Path, default=Path(tempfile.gettempdir()) / "llmlab-report-million.db")
    options = parser.parse_args()
    if not options.db.exists():
        began = time.perf_counter()
        build(options.db, options.calls)
        print(f"built {options.db} in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    with Store.read(options.db) as store:
        (calls, runs), *_ = store.db.execute("select (select count(*) from calls), (select count(*) from runs)")
    print(f"{calls:,} calls in {runs:,} runs, {options.db.stat().st_size / 2**20:.0f} MiB; target {TARGET_S} s")
    found: dict[str, dict[str, float]] = {}
    for words in ([], ["laptop", "desktop"]):
        for form in ("table", "json", "csv", "md"):
            times_s = [report(options.db, form, words) for _ in range(options.rounds)]
            name = " ".join(["llmlab report", *words, "--format", form])
            found[name] = {"median_s": statistics.median(times_s), "worst_s": max(times_s)}
            print(f"{name:44} median {found[name]['median_s']:.2f} s, worst {found[name]['worst_s']:.2f} s")
    print(json.dumps(found))


def report(db: Path, form: str, words: list[str]) -> float:
    """Seconds that one `llmlab report` takes from start to exit."""
    command = [sys.executable, "-m", "llmlab", "report", *words, "--format", form, "--db", str(db)]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "120"})
    return time.perf_counter() - began


def build(db: Path, calls: int) -> None:
    """Write a database with `calls` calls, every tenth run a bench run."""
    rng = random.Random(1)
    machines = [Machine(id=new_id(), os="Linux", cpu=f"CPU {n}", cores_physical=8, ram_bytes=16 << 30) for n in (1, 2)]
    model = Model(name="qwen2.5:3b", digest="357c53fb659c5076", quantization="Q4_K_M")
    with Store.open(db) as store:
        for machine in machines:
            store.save_machine(machine)
        store.save_model(model)
        made = 0
        while made < calls:
            bench = not rng.randrange(10)
            place = rng.randrange(2)
            run = Run(
                command="bench" if bench else rng.choice(("chat", "serve")),
                tag=("laptop", "desktop")[place],
                machine_id=machines[place].id,
                model_id=model.id,
                num_ctx=4096,
                server_kind="ollama",
                bench_version=1 if bench else None,
                outcome="ok",
            )
            store.start_run(run)
            for seq, call in enumerate(
                bench_calls(rng) if bench else everyday_calls(rng, min(CALLS_PER_RUN, calls - made))
            ):
                store.add(labelled(call, run, seq))
                made += 1
            store.flush()


def labelled(call: Call, run: Run, seq: int) -> Call:
    return Call(**{**call.row(), "run_id": run.id, "model_id": run.model_id, "seq": seq, "num_ctx": 4096})


def everyday_calls(rng: random.Random, count: int) -> Iterator[Call]:
    for _ in range(count):
        yield call(rng, rng.randrange(20, 4000), purpose="answer")


def bench_calls(rng: random.Random) -> Iterator[Call]:
    """The calls of a full bench run, about 130."""
    for size in SIZES:
        yield call(rng, 256, purpose="anchor")
        for repeat in range(5):
            yield call(rng, size, purpose="measured", experiment="prompt_length", size=size, repeat=repeat)
    for variant in ("first", "again", "same_start", "new_start", "control"):
        for repeat in range(5):
            yield call(
                rng, 3000, purpose="measured", experiment="repeat_prompt", variant=variant, size=3000, repeat=repeat
            )
    for users in USERS:
        yield call(rng, 256, purpose="anchor")
        for repeat in range(5):
            for user in range(1, users + 1):
                yield call(rng, 40, purpose="measured", experiment="users", size=users, repeat=repeat, user=user)
    for turns in TURNS:
        for repeat in range(3):
            columns = {"experiment": "overflow", "variant": "no_budget", "size": turns, "repeat": repeat}
            yield call(rng, 400 * turns, purpose="measured", recalled=turns < 12, **columns)


def call(rng: random.Random, tokens: int, **columns: object) -> Call:
    prefill_ns, decode_ns = int(tokens / 150 * 1e9 * rng.uniform(0.9, 1.1)), int(2e9 * rng.uniform(0.9, 1.1))
    fields = {
        "prompt_tokens": tokens,
        "prompt_chars": tokens * 4,
        "cache_state": "cold",
        "output_tokens": 64,
        "pieces": 64,
        "ttft_ns": prefill_ns + 20_000_000,
        "ttft_answer_ns": prefill_ns + 20_000_000,
        "last_piece_ns": prefill_ns + decode_ns,
        "total_ns": prefill_ns + decode_ns + 1_000_000,
        "load_ns": 0,
        "prefill_ns": prefill_ns,
        "prefill_source": "server",
        "decode_ns": decode_ns,
        "http_status": 200,
        "timing_source": "socket",
        **columns,
    }
    return Call(**fields)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
