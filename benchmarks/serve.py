"""What does it cost to talk through `llmlab serve`? The same streams direct and through it, in one run.

    python benchmarks/serve.py [--quick] [--path /api/chat]

The mock server (`mock.py`) streams on a known schedule in its own process, `llmlab serve` runs in another, and this one
asks with the floor's reader (`floor.py`), so that the client is the same both ways.

- added TTFT: time to first token through llmlab − direct; the medians of 8 streams at once, a burst of 64, and 64 with
  their starts spread over 2 s (there also the 99th percentiles).
- CPU per token: CPU time of the llmlab process ÷ tokens relayed, requests included; of the burst of 64.
- lost: of 500 streams at once, those that did not get every token.
- memory: resident after 2,000 and after 20,000 short requests.

The last line of the output is the same as one JSON object.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from floor import Reader
from mock import MODEL, fast_run, mock_server  # noqa: UP026

HERE = Path(__file__).parent
TOKENS = 100


class EventReader(Reader):
    """The floor's reader for /chat, whose events have names."""

    def on_body(self, body: bytes) -> None:
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and "delta" in json.loads(line[5:]):
                self.stamps.append(self._stamp_ns)


@contextmanager
def llmlab(upstream: str, folder: str) -> Iterator[tuple[str, psutil.Process]]:
    """`llmlab serve` in front of `upstream`; its address and its process."""
    command = [sys.executable, "-m", "llmlab", "serve", "--host", upstream, "--port", "0", "--db", f"{folder}/lab.db"]
    env = {**os.environ, "XDG_DATA_HOME": folder}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr
        words = process.stderr.readline().split()
        yield words[words.index("at") + 1], psutil.Process(process.pid)
        process.terminate()
        process.wait(10)


def body_of(path: str, name: str) -> bytes:
    if path == "/chat":
        return json.dumps({"message": f"Say {name}"}).encode()
    return json.dumps(
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": f"Say {name}"}]}
    ).encode()


async def ask(url: str, path: str, name: str, delay_s: float = 0.0) -> tuple[float, int]:
    """One stream: its time to first token in milliseconds (inf: none came), and how many tokens came."""
    await asyncio.sleep(delay_s)
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    body, make = body_of(path, name), EventReader if path == "/chat" else Reader
    head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    try:
        _, reader = await loop.create_connection(lambda: make(head + body), parts.hostname, parts.port)
    except OSError:
        return float("inf"), 0
    await reader.done
    if not reader.stamps:
        return float("inf"), 0
    return (reader.stamps[0] - reader.sent_ns) / 1e6, len(reader.stamps)


async def round_of(url: str, path: str, n: int, spread_s: float = 0.0) -> list[tuple[float, int]]:
    """`n` streams at once, or with their starts spread evenly."""
    return await asyncio.gather(*(ask(url, path, f"s{i}", spread_s * i / n) for i in range(n)))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def added(direct: str, through: str, path: str, n: int, spread_s: float, rounds: int) -> dict[str, float]:
    """Rounds direct and through llmlab, in turn, and what llmlab added to the time to first token."""
    seen: dict[str, list[float]] = {direct: [], through: []}
    for _ in range(rounds):
        for url in (direct, through):
            asked = path if url == through or path != "/chat" else "/api/chat"
            seen[url] += [ttft for ttft, _ in await round_of(url, asked, n, spread_s)]
    return {
        "direct_p50_ms": statistics.median(seen[direct]),
        "added_p50_ms": statistics.median(seen[through]) - statistics.median(seen[direct]),
        "added_p99_ms": percentile(seen[through], 0.99) - percentile(seen[direct], 0.99),
    }


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def speed(direct: str, through: str, process: psutil.Process, path: str, rounds: int) -> dict[str, Any]:
    await round_of(through, path, 8)
    found: dict[str, Any] = {}
    for name, n, spread_s in (("8 streams", 8, 0.0), ("burst of 64", 64, 0.0), ("64 over 2 s", 64, 2.0)):
        # Few streams make a noisy median: they get more rounds.
        found[name] = await added(direct, through, path, n, spread_s, rounds * (4 if n < 64 else 1))
        show(f"{path}  {name:<12}", found[name])
    before_s, tokens = cpu_s(process), 0
    for _ in range(rounds):
        tokens += sum(count for _, count in await round_of(through, path, 64))
    found["cpu_per_token_us"] = (cpu_s(process) - before_s) / tokens * 1e6
    print(f"{path}  CPU per token {found['cpu_per_token_us']:.0f} µs", flush=True)
    return found


async def many(through: str, path: str, n: int, tokens: int) -> dict[str, Any]:
    counts = [count for _, count in await round_of(through, path, n)]
    found = {"streams": n, "lost": sum(count < tokens for count in counts)}
    print(f"{path}  {n} streams at once, {found['lost']} lost", flush=True)
    return found


async def memory(through: str, process: psutil.Process, path: str, requests: int) -> dict[str, Any]:
    """Resident memory after a tenth of the requests and after all of them, 16 at a time, the rows written."""
    names, sizes = iter(range(requests)), {}
    first = requests // 10

    async def worker() -> None:
        for number in names:
            if number == first:
                sizes["first_mb"] = process.memory_info().rss / 1e6
            await ask(through, path, f"r{number}")

    started_s, before_s = time.monotonic(), cpu_s(process)
    await asyncio.gather(*(worker() for _ in range(16)))
    await asyncio.sleep(1)
    sizes["last_mb"] = process.memory_info().rss / 1e6
    found = {
        "requests": requests,
        **sizes,
        "grown_mb": sizes["last_mb"] - sizes["first_mb"],
        "cpu_per_request_ms": (cpu_s(process) - before_s) / requests * 1e3,
        "requests_per_s": requests / (time.monotonic() - started_s),
    }
    show(f"{path}  memory      ", found)
    return found


def show(title: str, figures: dict[str, float]) -> None:
    print(title, "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", action="append", help="/api/chat, /v1/chat/completions or /chat; all without it")
    parser.add_argument("--quick", action="store_true", help="one round of each, 2,000 requests")
    args = parser.parse_args()
    paths = args.path or ["/api/chat", "/v1/chat/completions", "/chat"]
    rounds, requests = (1, 2_000) if args.quick else (3, 20_000)
    found: dict[str, Any] = {path: {} for path in paths}
    with tempfile.TemporaryDirectory() as folder:
        with mock_server("--tokens", str(TOKENS)) as direct, llmlab(direct, folder) as (through, process):
            for path in paths:
                found[path] |= fast_run(speed(direct, through, process, path, rounds))
        with mock_server("--tokens", "50", "--rate", "20") as direct, llmlab(direct, folder) as (through, process):
            for path in paths:
                found[path]["many"] = fast_run(many(through, path, 500, 50))
        with mock_server("--tokens", "3", "--ttft-ms", "0", "--rate", "10000") as direct:
            for path in paths:
                with llmlab(direct, folder) as (through, process):
                    found[path]["memory"] = fast_run(memory(through, process, path, requests))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
