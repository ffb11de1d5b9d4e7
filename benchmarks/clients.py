"""The clients that are measured: how each one reads the mock server's streams, and when it saw what.

llmlab reads as its bench does: connections opened and requests built ahead, the answer taken in as a whole. `pieces` is
llmlab again as its chat reads, a task woken for every token. The others are used as their own pages show it, without
limits to their connections.
"""

import asyncio
import itertools
import json
import resource
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

from mock import MODEL, WARM  # noqa: UP026

PATHS = {"ollama": "/api/chat", "openai": "/v1/chat/completions"}
# Importing a client must not cost more than the client: what each one needs is imported by its own function.
NEEDS = {
    "floor": "httptools",
    "llmlab": "llmlab",
    "pieces": "llmlab",
    "aiohttp": "aiohttp",
    "httpx": "httpx",
    "ollama": "ollama",
}
AS_THEY_COME = ("httpx", "ollama")

Seen = tuple[int, "array[int]"]  # when the request was sent, when each token arrived; nanoseconds
Ready = Callable[[list[str]], Awaitable[None]]


async def nothing_to_prepare(_names: list[str]) -> None:
    """The others open their connections when they ask."""


class Runner:
    """Runs `streams` streams at once, or spread, and keeps what was seen and what it cost.

    `cpu_ns` is the process's CPU time of the round, `memory_bytes` by how much its peak grew.
    """

    def __init__(self, streams: int, spread_s: float) -> None:
        self._streams = streams
        self._spread_s = spread_s
        self.seen: dict[str, Seen] = {}
        self.cpu_ns = 0
        self.memory_bytes = 0

    async def __call__(self, one: Callable[[str], Awaitable[Seen]], ready: Ready = nothing_to_prepare) -> None:
        """Read a stream to warm up, then all of them; `ready` prepares the streams of these names, and is counted."""

        async def start(number: int, name: str) -> None:
            await asyncio.sleep(self._spread_s * number / self._streams)
            self.seen[name] = await one(name)

        await ready([WARM])
        await one(WARM)
        names = [f"s{number}" for number in range(self._streams)]
        peak_bytes, before_ns = peak_memory_bytes(), time.process_time_ns()
        await ready(names)
        await asyncio.gather(*itertools.starmap(start, enumerate(names)))
        self.cpu_ns = time.process_time_ns() - before_ns
        self.memory_bytes = peak_memory_bytes() - peak_bytes


def peak_memory_bytes() -> int:
    """The most that this process ever had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


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
            self.more, self.aclose, self.finish = arrivals.more, arrivals.aclose, arrivals.finish
            self.source, self.sent_ns, self.connect_ns = arrivals.source, arrivals.sent_ns, arrivals.connect_ns
            self.stamps = array("q")

        def take(self) -> list[tuple[int, bytes]]:
            chunks: list[tuple[int, bytes]] = self._arrivals.take()
            self._note(chunks)
            return chunks

        async def pour(self, take_in: Any) -> None:
            def take(chunks: list[tuple[int, bytes]]) -> bool:
                self._note(chunks)
                return bool(take_in(chunks))

            await self._arrivals.pour(take)

        def _note(self, chunks: list[tuple[int, bytes]]) -> None:
            for stamp_ns, data in chunks:
                if b" tok" in data:
                    self.stamps.append(stamp_ns)

    class TappedTransport(StampingTransport):
        async def handle_async_request(self, request: Any) -> Any:
            response = await super().handle_async_request(request)
            name = json.loads(request.content)["messages"][-1]["content"].split()[-1]
            response.extensions["arrivals"] = taps[name] = Tap(response.extensions["arrivals"])
            return response

    taps: dict[str, Tap] = {}
    server = Server(url=url, source="--host", api=wire)
    async with Client(server, transport=TappedTransport()) as client:
        chats: dict[str, ChatStream] = {}

        async def ready(names: list[str]) -> None:
            """As before every burst of a bench: connections open, requests built."""
            await client.connect(len(names))
            for name in names:
                chats[name] = client.chat([Message("user", f"Say {name}")], ChatOptions(model=MODEL, num_ctx=4096))
                chats[name].prepare()

        async def one(name: str) -> Seen:
            async with chats.pop(name) as stream:
                if pieces:
                    async for _ in stream:
                        pass
                else:
                    await stream.read()
            call, sent_ns = stream.call, stream.sent_ns
            if call.outcome != "ok" or call.ttft_ns is None or sent_ns is None:
                raise SystemExit(f"llmlab failed: {call.error}")
            stamps = taps.pop(name).stamps
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
            stamps = array("q")
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
            stamps = array("q")
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
        stamps = array("q")
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
