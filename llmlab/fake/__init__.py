"""A fake server of known speed: Ollama's and OpenAI's wires with honest figures, and the true times it wrote.

    with FakeServer(Figures(prefill_tokens_per_s=1000, decode_gap_ns=10_000_000, slots=2)) as fake:
        ...  # talk to fake.url
    fake.served[0].ttft_ns

It runs in a thread of its own, or with `process=True` in a process of its own, where it shares no core time slices
with the measuring program's interpreter.
"""

import asyncio
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from types import TracebackType
from typing import Any

from llmlab.fake.connection import Connection
from llmlab.fake.model import Figures
from llmlab.fake.state import FakeModel, Replay, Served

__all__ = ["FakeServer", "Figures", "Replay", "Served", "replay_of"]


class FakeServer:
    """A running fake as a context manager; `url` is where it listens on a free loopback port.

    `replays` are the answers of the first chat calls, in order; the later ones follow `figures`.
    """

    def __init__(self, figures: Figures | None = None, replays: Sequence[Replay] = (), *, process: bool = False):
        self.figures = figures or Figures()
        self.replays = tuple(replays)
        if process and self.replays:
            raise ValueError("replays are for a fake in a thread")
        self.in_process = process
        self.url = ""
        self.child: subprocess.Popen[str] | None = None
        self.thread: threading.Thread | None = None

    def __enter__(self) -> "FakeServer":
        if self.in_process:
            self.start_process()
        else:
            self.start_thread()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def model(self) -> str:
        return self.figures.model

    @property
    def served(self) -> list[Served]:
        """What was truly done for each chat call so far, in the order of arrival."""
        if self.child:
            return [Served(**row) for row in self.fetch("/fake/served")]
        return list(self.state.served)

    @property
    def requests(self) -> list[str]:
        """Every request so far, as `GET /api/ps`."""
        if self.child:
            return [line for line in self.fetch("/fake/requests") if "/fake/" not in line]
        return list(self.state.requests)

    def fetch(self, path: str) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url + path) as answer:
            return json.load(answer)

    def start_process(self) -> None:
        command = [sys.executable, "-m", "llmlab.fake", json.dumps(asdict(self.figures))]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout
        self.url = self.child.stdout.readline().strip()

    def start_thread(self) -> None:
        ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve(ready)), name="fake", daemon=True)
        self.thread.start()
        ready.wait()

    async def serve(self, ready: threading.Event) -> None:
        """Listen until `stop` is called."""
        self.loop, self.ended = asyncio.get_running_loop(), asyncio.Event()
        self.state = FakeModel(self.figures, self.replays)
        connections: set[Connection] = set()

        def connect() -> Connection:
            connection = Connection(self.state)
            connections.add(connection)
            return connection

        server = await self.loop.create_server(connect, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await self.ended.wait()
        server.close()
        for connection in connections:
            connection.transport.abort()
        await asyncio.sleep(0)

    def stop(self) -> None:
        """Close every connection and end the thread or process."""
        if self.thread:
            self.loop.call_soon_threadsafe(self.ended.set)
            self.thread.join()
            self.thread = None
        if self.child and self.child.stdin and self.child.stdout:
            self.child.stdin.close()
            self.child.wait()
            self.child.stdout.close()
            self.child = None


def replay_of(capture: Mapping[str, Any]) -> Replay:
    """A recorded Ollama answer (`status`, `headers`, `body`) at its recorded times.

    Each line carries the moment it was made; the request came `total_duration` before the last one. A body without
    such moments is written at once.
    """
    body = capture["body"].encode()
    lines = [line + b"\n" for line in body.split(b"\n") if line]
    if not body.endswith(b"\n") and lines:
        lines[-1] = lines[-1][:-1]
    headers = tuple((k, v) for k, v in capture["headers"].items() if k not in ("Transfer-Encoding", "Content-Length"))
    moments = [created_ns(line) for line in lines]
    known = [m for m in moments if m is not None]
    start = known[-1] - json.loads(lines[-1]).get("total_duration", known[-1] - known[0]) if known else 0
    chunks = tuple((0 if at is None else at - start, line) for at, line in zip(moments, lines, strict=True))
    return Replay(status=int(str(capture["status"]).split()[0]), headers=headers, chunks=chunks)


def created_ns(line: bytes) -> int | None:
    """The `created_at` of a line, in nanoseconds of the calendar."""
    found = re.search(rb'"created_at":"([0-9T:-]+)(?:\.([0-9]+))?Z"', line)
    if not found:
        return None
    seconds = datetime.fromisoformat(found[1].decode() + "+00:00").timestamp()
    return int(seconds) * 1_000_000_000 + int((found[2] or b"").ljust(9, b"0"))
