"""llmlab against its targets: every benchmark in one run, one table and one line of JSON.

    python -m benchmarks [--peers] [--peer guidellm] [--peer PATH/aiperf] [--skip serve,million]

Each figure comes from the script named beside it, which says what it means. Run it on a quiet machine; most figures are
ratios to a floor or a peer measured in the same run. `--peers` adds aiohttp and the official client to plain httpx,
those that are installed, `--peer` a whole tool. What the scripts print themselves goes to stderr.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmlab.machine import this_machine

HERE = Path(__file__).parent
RELAYS = {"/api/chat": "Ollama's wire", "/v1/chat/completions": "OpenAI's wire"}


@dataclass(frozen=True)
class Line:
    """One line of the table; `met` says whether `value` is within `target`, None where there is no target."""

    what: str
    target: str
    value: float
    unit: str
    met: bool | None
    script: str


def at_most(what: str, limit: float, unit: str, value: float, script: str) -> Line:
    return Line(what, f"≤ {limit:g} {unit}", value, unit, value <= limit, script)


def at_least(what: str, limit: float, unit: str, value: float, script: str) -> Line:
    return Line(what, f"≥ {limit:g} {unit}", value, unit, value >= limit, script)


def told(what: str, unit: str, value: float, script: str) -> Line:
    return Line(what, "–", value, unit, None, script)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help="aiohttp and the official client too")
    parser.add_argument("--peer", action="append", default=[], help="guidellm or aiperf, or the path of the program")
    parser.add_argument("--skip", type=lambda text: text.split(","), default=[], help=f"of: {', '.join(PARTS)}")
    options = parser.parse_args()
    lines: list[Line] = []
    for name, part in PARTS.items():
        if name not in options.skip:
            print(f"… {name}", file=sys.stderr)
            lines += part(options)
    print(f"{machine_line()}\n\n{table(lines)}")
    machine = {"machine": machine_line(), "system": platform.platform(), "date": datetime.now(UTC).isoformat()}
    print(json.dumps({**machine, "lines": [asdict(line) for line in lines]}))


def machine_line() -> str:
    """What the figures were taken on, and when."""
    with tempfile.TemporaryDirectory() as folder:
        machine = this_machine(Path(folder))
    memory_gib = (machine.ram_bytes or 0) / 2**30
    what = f"{machine.cores_logical} cores ({machine.cpu}), {memory_gib:.0f} GiB, {machine.os}"
    return f"{what}, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"


def run(script: str, *args: str) -> Any:
    """The JSON in the last line that a script prints; what else it says goes to stderr."""
    command = [sys.executable, str(HERE / script), *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{script} ended with {done.returncode}: what it said is above")
    printed = done.stdout.strip().splitlines()
    print("\n".join(printed[:-1]), file=sys.stderr)
    return json.loads(printed[-1])


def fidelity(options: argparse.Namespace) -> Iterator[Line]:
    script, more = "client_fidelity.py", [word for peer in options.peer for word in ("--peer", peer)]
    if not options.peers:
        more += ["--clients", "llmlab,floor,httpx"]
    found = [run(script, "--streams", "64", "--repeat", "3", *more), run(script, "--streams", "1,8,256", *more)]
    rows = {(row["client"], row["streams"]): row for part in found for row in part["rows"]}
    ours, plain = rows["llmlab", 64], rows["httpx", 64]
    yield at_most("64 streams: TTFT error, p50", 5, "ms", ours["ttft_error_ms"]["p50"], script)
    yield at_most("64 streams: TTFT error, p99", 25, "ms", ours["ttft_error_ms"]["p99"], script)
    yield at_most("64 streams: gap error, p50", 0.2, "ms", ours["gap_error_ms"]["p50"], script)
    yield at_most("64 streams: CPU per token ÷ the floor's", 1.5, "", ours["cpu_per_floor"], script)
    share = ours["cpu_us_per_token"] / plain["cpu_us_per_token"]
    yield at_most("64 streams: CPU per token ÷ plain httpx's", 0.2, "", share, script)
    many = rows["llmlab", 256]
    yield at_most("256 streams: TTFT error, p50", 25, "ms", many["ttft_error_ms"]["p50"], script)
    yield at_most("256 streams: tokens lost", 0, "", many["lost"], script)
    for streams in (64, 256):
        memory_kb = rows["llmlab", streams]["memory_kb_per_stream"]
        yield told(f"{streams} streams: memory per stream", "kB", memory_kb, script)


def lag(_: argparse.Namespace) -> Iterator[Line]:
    rows = run("lag.py", "--users", "4,16")["rows"]
    for way, line in (("quiet", at_most), ("our own core busy", at_least)):
        found = [row for row in rows if row["machine"] == way]
        if found:
            marked = 100 * sum(row["marked"] for row in found) / sum(row["bursts"] for row in found)
            yield line(f"bursts marked `lag`, {way}", 5, "%", marked, "lag.py")


def startup(_: argparse.Namespace) -> Iterator[Line]:
    found = run("startup.py")
    yield at_most("llmlab --help, CPU", 0.35, "s", found["llmlab --help"]["cpu_s"], "startup.py")
    yield at_most("llmlab chat to its prompt", 0.8, "s", found["llmlab chat to its prompt"]["wall_s"], "startup.py")


def recording(_: argparse.Namespace) -> Iterator[Line]:
    found = run("recording.py")["one by one"]
    yield at_most("recording one call", 0.2, "ms", found["µs a call"] / 1e3, "recording.py")
    yield at_most("recording one call, on the event loop", 0.02, "ms", found["µs on the loop"] / 1e3, "recording.py")
    yield at_most("one call on disk", 500, "bytes", found["bytes a call"], "recording.py")


def million(_: argparse.Namespace) -> Iterator[Line]:
    worst_s = max(found["median_s"] for found in run("report_million.py").values())
    yield at_most("report over 1,000,000 calls", 1.5, "s", worst_s, "report_million.py")
    pages = run("datasette_million.py", "--rounds", "3")
    slowest_s = max(pages[name]["first_s"] for name in ("start page", "compare page"))
    yield at_most("Datasette pages over 1,000,000 calls", 2, "s", slowest_s, "datasette_million.py")


def serve(_: argparse.Namespace) -> Iterator[Line]:
    found = run("serve.py")
    for path, wire in RELAYS.items():
        figures = flat(found[path])
        for what, limit, unit, key in RELAY_TARGETS:
            yield at_most(f"serve, {wire}: {what}", limit, unit, figures[key], "serve.py")


def flat(value: Any, prefix: str = "") -> dict[str, float]:
    """Nested figures by their joined names."""
    if not isinstance(value, dict):
        return {prefix.rstrip("."): value}
    return {k: v for name, inner in value.items() for k, v in flat(inner, f"{prefix}{name}.").items()}


def share(_: argparse.Namespace) -> Iterator[Line]:
    found = run("bench_share.py")
    yield at_most("bench's own time, of the run", 2, "%", 100 * found["own_share"], "bench_share.py")


RELAY_TARGETS = (
    ("added TTFT, 8 streams", 3, "ms", "8 streams.added_p50_ms"),
    ("added TTFT, burst of 64", 15, "ms", "burst of 64.added_p50_ms"),
    ("added TTFT, 64 over 2 s, p50", 2, "ms", "64 over 2 s.added_p50_ms"),
    ("added TTFT, 64 over 2 s, p99", 5, "ms", "64 over 2 s.added_p99_ms"),
    ("CPU per token", 80, "µs", "cpu_per_token_us"),
    ("500 streams at once, lost", 0, "", "many.lost"),
    ("memory after 20,000 requests, over 2,000", 5, "MB", "memory.grown_mb"),
)
PARTS = {
    "fidelity": fidelity,
    "lag": lag,
    "startup": startup,
    "recording": recording,
    "million": million,
    "serve": serve,
    "share": share,
}


def table(lines: list[Line]) -> str:
    """The lines as Markdown."""
    met = {True: "yes", False: "**no**", None: ""}
    rows = [f"| {x.what} | {x.target} | {x.value:.3g} {x.unit} | {met[x.met]} |" for x in lines]
    return "\n".join(["| what | target | measured | met |", "|---|--:|--:|---|", *rows])


if __name__ == "__main__":
    main()
