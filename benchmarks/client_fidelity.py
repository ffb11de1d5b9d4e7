"""How truly does a client report times, and what does it cost? llmlab's client beside its peers and the floor.

    python benchmarks/client_fidelity.py [--streams 1,8,64,256] [--clients llmlab,floor,httpx] [--wire openai]

One mock server in its own process streams on a known schedule and keeps the true times of its writes; each client
runs in a process of its own. All streams of a round start at once unless `--spread-ms` spreads them.

- TTFT error: (first token reported − request sent, as the client knows it) − (first token written − request read).
- gap error: the distance of two tokens as reported − as written, absolute.
- CPU per token: the client process's CPU time of the round ÷ tokens received, requests and connections included.

llmlab, aiohttp and the floor run on uvloop where there is one; httpx and the official client run as they come, on
asyncio. The last line of the output is the same as one JSON object.
"""

import argparse
import asyncio
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mock import MODEL, fast_run  # noqa: UP026

HERE = Path(__file__).parent
PATHS = {"ollama": "/api/chat", "openai": "/v1/chat/completions"}
# Importing a client must not cost more than the client: what each one needs is imported by its own function.
NEEDS = {
    "llmlab": "llmlab",
    "pieces": "llmlab",
    "floor": "httptools",
    "aiohttp": "aiohttp",
    "httpx": "httpx",
    "ollama": "ollama",
}

AS_THEY_COME = ("httpx", "ollama")

Seen = tuple[int, list[int]]  # when the request was sent, when each token arrived; nanoseconds


def request_body(name: str, wire: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": f"Say {name}"}]}
    if wire == "openai":
        body["stream_options"] = {"include_usage": True}
    return body


def content_of(value: dict[str, Any]) -> str | None:
    message = value.get("message") or (value.get("choices") or [{}])[0].get("delta") or {}
    text: str | None = message.get("content")
    return text


async def use_floor(url: str, wire: str, run: "Runner") -> None:
    from floor import read_stream

    host, port = url.removeprefix("http://").split(":")

    async def one(name: str) -> Seen:
        reader = await read_stream(host, int(port), PATHS[wire], json.dumps(request_body(name, wire)).encode())
        return reader.sent_ns, reader.stamps

    await run(one)


async def use_llmlab(url: str, wire: str, run: "Runner", pieces: bool = False) -> None:
    from llmlab.client import ChatOptions, ChatStream, Client
    from llmlab.client.transport import StampingTransport
    from llmlab.messages import Message
    from llmlab.settings import Server

    class Tap:
        """The stamped body, whose stamps are noted as they pass to the client."""

        def __init__(self, arrivals: Any) -> None:
            self._arrivals = arrivals
            self.aclose, self.finish = arrivals.aclose, arrivals.finish
            self.source, self.sent_ns, self.connect_ns = arrivals.source, arrivals.sent_ns, arrivals.connect_ns
            self.stamps: list[int] = []

        async def pour(self, take_in: Any) -> None:
            def note(chunks: list[tuple[int, bytes]]) -> bool:
                self.stamps += [stamp_ns for stamp_ns, data in chunks if b" tok" in data]
                return bool(take_in(chunks))

            await self._arrivals.pour(note)

    class TappedTransport(StampingTransport):
        async def handle_async_request(self, request: Any) -> Any:
            response = await super().handle_async_request(request)
            name = json.loads(request.content)["messages"][-1]["content"].split()[-1]
            response.extensions["arrivals"] = taps[name] = Tap(response.extensions["arrivals"])
            return response

    taps: dict[str, Tap] = {}
    server = Server(url=url, source="--host", api=wire)
    async with Client(server, transport=TappedTransport() if run.tapped else None) as client:
        chats: dict[str, ChatStream] = {}

        async def ready(names: list[str]) -> None:
            """As before every burst of a bench: connections open, requests built."""
            await client.connect(len(names))
            for name in names:
                chats[name] = client.chat([Message("user", f"Say {name}")], ChatOptions(model=MODEL, num_ctx=4096))
                chats[name].prepare()

        async def one(name: str) -> Seen:
            async with chats[name] as stream:
                if pieces:
                    async for _ in stream:
                        pass
                else:
                    await stream.read()
            call, sent_ns = stream.call, stream.sent_ns
            if call.outcome != "ok" or call.ttft_ns is None or sent_ns is None:
                raise SystemExit(f"llmlab failed: {call.error}")
            stamps = taps[name].stamps if run.tapped else [sent_ns + call.ttft_ns] * call.pieces
            if stamps[0] != sent_ns + call.ttft_ns:
                raise SystemExit("llmlab reported another first token than arrived")
            return sent_ns, stamps

        await run(one, ready)


async def use_pieces(url: str, wire: str, run: "Runner") -> None:
    await use_llmlab(url, wire, run, pieces=True)


async def use_httpx(url: str, wire: str, run: "Runner") -> None:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def one(name: str) -> Seen:
            stamps: list[int] = []
            sent_ns = time.perf_counter_ns()
            async with client.stream("POST", PATHS[wire], json=request_body(name, wire)) as response:
                async for line in response.aiter_lines():
                    text = line.removeprefix("data:").strip()
                    if text and text != "[DONE]" and content_of(json.loads(text)):
                        stamps.append(time.perf_counter_ns())
            return sent_ns, stamps

        await run(one)


async def use_aiohttp(url: str, wire: str, run: "Runner") -> None:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(name: str) -> Seen:
            stamps: list[int] = []
            sent_ns = time.perf_counter_ns()
            async with session.post(url + PATHS[wire], json=request_body(name, wire)) as response:
                async for line in response.content:
                    text = line.removeprefix(b"data:").strip()
                    if text and text != b"[DONE]" and content_of(json.loads(text)):
                        stamps.append(time.perf_counter_ns())
            return sent_ns, stamps

        await run(one)


async def use_ollama(url: str, wire: str, run: "Runner") -> None:
    import ollama

    client = ollama.AsyncClient(host=url)

    async def one(name: str) -> Seen:
        stamps: list[int] = []
        sent_ns = time.perf_counter_ns()
        messages = request_body(name, wire)["messages"]
        async for part in await client.chat(model=MODEL, messages=messages, stream=True):
            if part.message.content:
                stamps.append(time.perf_counter_ns())
        return sent_ns, stamps

    await run(one)


CLIENTS = {
    "floor": use_floor,
    "llmlab": use_llmlab,
    "pieces": use_pieces,
    "aiohttp": use_aiohttp,
    "httpx": use_httpx,
    "ollama": use_ollama,
}


Ready = Callable[[list[str]], Awaitable[None]]


async def nothing_to_prepare(_names: list[str]) -> None:
    """The others open their connections when they ask."""


class Runner:
    """Runs `streams` streams at once, or spread, and keeps what was seen and what it cost."""

    def __init__(self, streams: int, spread_s: float, tapped: bool) -> None:
        self._streams = streams
        self._spread_s = spread_s
        self.tapped = tapped
        self.seen: dict[str, Seen] = {}
        self.cpu_ns = 0

    async def __call__(self, one: Callable[[str], Awaitable[Seen]], ready: Ready = nothing_to_prepare) -> None:
        """Read a stream to warm up, then all of them; `ready` prepares the streams of these names, and is counted."""

        async def start(number: int, name: str) -> None:
            await asyncio.sleep(self._spread_s * number / self._streams)
            self.seen[name] = await one(name)

        await ready(["warm"])
        await one("warm")
        before_ns = time.process_time_ns()
        names = [f"s{number}" for number in range(self._streams)]
        await ready(names)
        await asyncio.gather(*itertools.starmap(start, enumerate(names)))
        self.cpu_ns = time.process_time_ns() - before_ns


def work(args: argparse.Namespace) -> None:
    """The child process: one round of one client; writes what it saw into the file `--report`."""
    runner = Runner(args.streams[0], args.spread_ms / 1000, args.tapped)
    run = asyncio.run if args.work in AS_THEY_COME else fast_run
    run(CLIENTS[args.work](args.url, args.wire, runner))
    args.report.write_text(json.dumps({"seen": runner.seen, "cpu_ns": runner.cpu_ns}))


def run_round(client: str, url: str, args: argparse.Namespace, streams: int, *more: str) -> tuple[Any, Any]:
    """One round in a process of its own: what it saw, and the truth."""
    command = [sys.executable, __file__, "--work", client, "--url", url, "--wire", args.wire]
    command += ["--streams", str(streams), "--spread-ms", str(args.spread_ms), *more]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        subprocess.run([*command, "--report", str(path)], check=True)
        report = json.loads(path.read_text())
    with urllib.request.urlopen(f"{url}/truth") as response:
        return report, json.load(response)


def measure(client: str, url: str, args: argparse.Namespace, streams: int) -> dict[str, Any]:
    """One round compared with the truth; milliseconds and microseconds.

    llmlab keeps no stamp of every token, so that its gaps come from a second round with a tap on the bytes.
    """
    report, truth = run_round(client, url, args, streams)
    cpu_ns = report["cpu_ns"]
    if client == "llmlab":
        report, truth = run_round(client, url, args, streams, "--tapped")
    ttft, gaps, late, tokens = [], [], [], 0
    for name, (sent_ns, stamps) in report["seen"].items():
        written = truth[name]["written_ns"]
        tokens += len(stamps)
        ttft.append(((stamps[0] - sent_ns) - (written[0] - truth[name]["received_ns"])) / 1e6)
        late += [(stamp - true) / 1e6 for stamp, true in zip(stamps, written, strict=True)]
        gaps += [abs((stamps[n] - stamps[n - 1]) - (written[n] - written[n - 1])) / 1e6 for n in range(1, len(stamps))]
    return {
        "client": client,
        "streams": streams,
        "ttft_error_ms": spread(ttft),
        "gap_error_ms": spread(gaps),
        "stamped_late_ms": spread(late),
        "cpu_us_per_token": round(cpu_ns / 1e3 / tokens, 1),
        "tokens": tokens,
        "lost": streams * args.tokens - tokens,
    }


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": round(statistics.median(ordered), 3), "p99": round(p99, 3), "max": round(ordered[-1], 3)}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| streams | client | TTFT error p50 / p99 / max (ms) | gap error p50 / p99 / max (ms) | CPU µs per token"
        " | ÷ floor | lost |",
        "|--:|---|---|---|--:|--:|--:|",
    ]
    for row in rows:
        ttft, gap = (" / ".join(f"{v:.2f}" for v in row[k].values()) for k in ("ttft_error_ms", "gap_error_ms"))
        ratio = "–" if row["cpu_per_floor"] is None else f"{row['cpu_per_floor']:.2f}"
        lines.append(
            f"| {row['streams']} | {row['client']} | {ttft} | {gap} | {row['cpu_us_per_token']:.1f} | {ratio}"
            f" | {row['lost']} |"
        )
    return "\n".join(lines)


def median_row(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round with the median CPU: rounds of a busy machine differ."""
    return sorted(rounds, key=lambda row: row["cpu_us_per_token"])[len(rounds) // 2]


def compare(args: argparse.Namespace) -> None:
    command = [sys.executable, str(HERE / "mock.py"), "--ttft-ms", str(args.ttft_ms)]
    command += ["--rate", str(args.rate), "--tokens", str(args.tokens)]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as mock:
        try:
            assert mock.stdout is not None
            url = mock.stdout.readline().strip()
            for streams in args.streams:
                rounds: dict[str, list[dict[str, Any]]] = {}
                for _ in range(args.repeat):
                    for client in args.clients:
                        rounds.setdefault(client, []).append(measure(client, url, args, streams))
                chosen = [median_row(found) for found in rounds.values()]
                floor = next((row["cpu_us_per_token"] for row in chosen if row["client"] == "floor"), None)
                for row in chosen:
                    row["cpu_per_floor"] = None if floor is None else round(row["cpu_us_per_token"] / floor, 2)
                rows += chosen
        finally:
            mock.terminate()
    print(table(rows))
    print(json.dumps({"wire": args.wire, "rate": args.rate, "ttft_ms": args.ttft_ms, "rows": rows}))


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
    parser.add_argument("--repeat", type=int, default=1, help="rounds of each client; the median CPU counts")
    parser.add_argument("--work", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--tapped", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
