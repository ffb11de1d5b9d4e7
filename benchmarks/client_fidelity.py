"""How truly does a client report times, and what does it cost? llmlab's client beside its peers and the floor.

    python benchmarks/client_fidelity.py [--streams 1,8,64,256] [--clients llmlab,floor,httpx] [--wire openai]
        [--repeat 3] [--peer guidellm] [--peer PATH/aiperf]

One mock server in its own process streams on a known schedule and keeps the true times of its writes; each client
(`clients.py`) runs in a process of its own. All streams of a round start at once unless `--spread-ms` spreads them.

- TTFT error: (first token reported − request sent, as the client knows it) − (first token written − request read).
- gap error: the distance of two tokens as reported − as written, absolute.
- CPU per token: the client process's CPU time of the round ÷ tokens received, requests and connections included.
- memory per stream: by how much the round raised the peak of the process's memory ÷ streams.

Each figure is the median of its rounds. llmlab, aiohttp and the floor run on uvloop where there is one; httpx and the
official client run as they come, on asyncio. Whole tools (`peers.py`) join with `--peer` where they are installed; they
speak OpenAI's wire only, and are given no figure that their start-up would drown. The last line of the output is the
same as one JSON object, with every round.
"""

import argparse
import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from clients import AS_THEY_COME, CLIENTS, NEEDS, PATHS, Runner
from mock import fast_run, mock_server  # noqa: UP026
from peers import Failed, measure_peer

HERE = Path(__file__).parent


def work(args: argparse.Namespace) -> None:
    """The child process: one round of one client; writes what it saw into the file `--report`."""
    runner = Runner(args.streams[0], args.spread_ms / 1000)
    run = asyncio.run if args.work in AS_THEY_COME else fast_run
    run(CLIENTS[args.work](args.url, args.wire, runner))
    seen = {name: (sent_ns, list(stamps)) for name, (sent_ns, stamps) in runner.seen.items()}
    args.report.write_text(json.dumps({"seen": seen, "cpu_ns": runner.cpu_ns, "memory_bytes": runner.memory_bytes}))


def run_round(client: str, url: str, args: argparse.Namespace, streams: int) -> tuple[Any, Any]:
    """One round in a process of its own: what it saw, and the truth."""
    command = [sys.executable, __file__, "--work", client, "--url", url, "--wire", args.wire]
    command += ["--streams", str(streams), "--spread-ms", str(args.spread_ms)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        subprocess.run([*command, "--report", str(path)], check=True)
        report = json.loads(path.read_text())
    with urllib.request.urlopen(f"{url}/truth") as response:
        return report, json.load(response)


def measure(client: str, url: str, args: argparse.Namespace, streams: int) -> dict[str, Any]:
    """One round of a client compared with the truth; milliseconds, microseconds and kilobytes."""
    report, truth = run_round(client, url, args, streams)
    ttft, gaps, tokens = [], [], 0
    for name, (sent_ns, stamps) in report["seen"].items():
        written = truth[name]["written_ns"]
        tokens += len(stamps)
        ttft.append(((stamps[0] - sent_ns) - (written[0] - truth[name]["received_ns"])) / 1e6)
        gaps += [abs((stamps[n] - stamps[n - 1]) - (written[n] - written[n - 1])) / 1e6 for n in range(1, len(stamps))]
    return {
        "ttft_error_ms": spread(ttft),
        "gap_error_ms": spread(gaps),
        "cpu_us_per_token": report["cpu_ns"] / 1e3 / tokens,
        "memory_kb_per_stream": report["memory_bytes"] / 1e3 / streams,
        "lost": streams * args.tokens - tokens,
    }


def measure_whole(peer: str, url: str, args: argparse.Namespace, streams: int) -> dict[str, Any] | None:
    """One round of a whole tool; None, and said, where it fails."""
    try:
        row = measure_peer(peer, url, streams, args.tokens)
    except Failed as failed:
        print(f"{streams} streams: {failed}", file=sys.stderr)
        return None
    return {**row, **{key: spread(row[key]) for key in ("ttft_error_ms", "gap_error_ms")}}


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": round(statistics.median(ordered), 3), "p99": round(p99, 3), "max": round(ordered[-1], 3)}


def median_row(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure the median of its rounds; of lost tokens the sum."""
    row: dict[str, Any] = {}
    for key, value in rounds[0].items():
        values = [found[key] for found in rounds]
        if isinstance(value, dict):
            row[key] = median_row(values)
        else:
            row[key] = value if isinstance(value, str) else round(statistics.median(values), 3)
    return row | ({"lost": sum(found["lost"] for found in rounds)} if "lost" in row else {})


def beside_floor(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Give every round its CPU per token ÷ that of the floor in the same round."""
    for found in rows.values():
        for row, floor in zip(found, rows.get("floor", []), strict=False):
            if "cpu_us_per_token" in row:
                row["cpu_per_floor"] = row["cpu_us_per_token"] / floor["cpu_us_per_token"]


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| streams | client | TTFT error p50 / p99 / max (ms) | gap error p50 / p99 / max (ms) | CPU µs per token"
        " | ÷ floor | kB per stream | lost |",
        "|--:|---|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        ttft, gap = (" / ".join(f"{v:.2f}" for v in row[k].values()) for k in ("ttft_error_ms", "gap_error_ms"))
        cells = [
            f"{row[key]:.{digits}f}" if key in row else "–"
            for key, digits in (("cpu_us_per_token", 1), ("cpu_per_floor", 2), ("memory_kb_per_stream", 0))
        ]
        lines.append(f"| {row['streams']} | {row['client']} | {ttft} | {gap} | {' | '.join(cells)} | {row['lost']} |")
    return "\n".join(lines)


def compare(args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    every: list[dict[str, Any]] = []
    schedule = ["--ttft-ms", str(args.ttft_ms), "--rate", str(args.rate), "--tokens", str(args.tokens)]
    with mock_server(*schedule) as url:
        for streams in args.streams:
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in [*args.clients, *args.peer]}
            for _ in range(args.repeat):
                for client in args.clients:
                    rounds[client].append({"client": client, "streams": streams, **measure(client, url, args, streams)})
                for peer in args.peer:
                    if row := measure_whole(peer, url, args, streams):
                        rounds[peer].append(row)
            beside_floor(rounds)
            rows += [median_row(found) | {"streams": streams} for found in rounds.values() if found]
            every += [row for found in rounds.values() for row in found]
    print(table(rows))
    settings = {"wire": args.wire, "rate": args.rate, "ttft_ms": args.ttft_ms, "tokens": args.tokens}
    print(json.dumps({**settings, "rows": rows, "rounds": every}))


def main() -> None:
    installed = [name for name in CLIENTS if importlib.util.find_spec(NEEDS[name])]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 64, 256])
    parser.add_argument("--clients", type=lambda text: text.split(","), default=installed)
    parser.add_argument("--wire", choices=PATHS, default="ollama")
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--tokens", type=int, default=300, help="tokens of each stream")
    parser.add_argument("--spread-ms", type=float, default=0)
    parser.add_argument("--repeat", type=int, default=1, help="rounds of each client; the median of each figure counts")
    parser.add_argument("--peer", action="append", default=[], help="guidellm or aiperf, or the path of the program")
    parser.add_argument("--work", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
