"""A server in its own process that streams on a known schedule, and keeps the true times at which it wrote.

    python benchmarks/mock.py --port 8089 --ttft-ms 200 --rate 50 --tokens 100

It speaks Ollama's /api/chat and OpenAI's /v1/chat/completions. Every stream says its first token `ttft-ms` after its
request was read, then `rate` tokens a second on an absolute schedule. The last word of the last message names the
stream; `GET /truth` answers {name: {"received_ns", "written_ns": [...]}} and forgets them. The times are of the
system's monotonic clock, which other processes on the machine share.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

MODEL = "mock:1b"
WARM = "warm"  # the name of a stream that only warms a client up, and so is hurried
HURRY = 20


class Schedule:
    """What every stream follows; times in seconds."""

    def __init__(self, ttft_s: float, rate: float, tokens: int) -> None:
        self.ttft_s = ttft_s
        self.gap_s = 1 / rate
        self.tokens = tokens
        self.truth: dict[str, dict[str, Any]] = {}
        # Prepared once, so that a burst of requests is read without delay.
        self.ndjson = chunked(ndjson_lines(self), "application/x-ndjson")
        self.sse = chunked(sse_events(self), "text/event-stream")

    def figures(self) -> dict[str, int]:
        """What the closing line says, in Ollama's words."""
        decode_ns = int((self.tokens - 1) * self.gap_s * 1e9)
        prefill_ns = int(self.ttft_s * 1e9)
        return {
            "total_duration": prefill_ns + decode_ns,
            "load_duration": 1_000_000,
            "prompt_eval_count": 100,
            "prompt_eval_duration": prefill_ns,
            "eval_count": self.tokens,
            "eval_duration": decode_ns,
        }


class Connection(asyncio.Protocol):
    """Parses just enough HTTP/1.1 to read one request after the other, and streams the answers."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        self._first_s = 0.0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        received_ns = time.perf_counter_ns()
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1")
            length = 0
            for field in head.lower().split("\r\n")[1:]:
                if field.startswith("content-length:"):
                    length = int(field.partition(":")[2])
            if len(self._buffer) < end + 4 + length:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
            self._request(head.split(" ", 2)[1], body, received_ns)

    def _request(self, path: str, body: bytes, received_ns: int) -> None:
        if path == "/api/chat":
            self._stream(body, received_ns, self._schedule.ndjson)
        elif path == "/v1/chat/completions":
            self._stream(body, received_ns, self._schedule.sse)
        else:
            self._answer(path)

    def _answer(self, path: str) -> None:
        body: Any = {"version": "0.0.0-mock"}
        if path == "/truth":
            body, self._schedule.truth = self._schedule.truth, {}
        elif path == "/api/tags":
            body = {"models": [{"name": MODEL, "model": MODEL}]}
        self._reply("200 OK", body)

    def _reply(self, status: str, body: Any) -> None:
        text = json.dumps(body).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        self._transport.write(head.encode() + text)

    def _stream(self, body: bytes, received_ns: int, chunks: list[bytes]) -> None:
        try:
            name = last_word(json.loads(body))
        except (ValueError, LookupError, TypeError, AttributeError):
            self._reply("400 Bad Request", {"error": {"message": "not a chat"}})
            return
        written: list[int] = []
        self._schedule.truth[name] = {"received_ns": received_ns, "written_ns": written}
        # How late this request was read already counts: the schedule starts at the stamp.
        hurry = HURRY if name == WARM else 1
        gap_s = self._schedule.gap_s / hurry
        asked_s = self._loop.time() - (time.perf_counter_ns() - received_ns) / 1e9
        self._first_s = asked_s + self._schedule.ttft_s / hurry
        self._timer = self._loop.call_at(self._first_s, self._write, chunks, 0, gap_s, written)

    def _write(self, chunks: list[bytes], number: int, gap_s: float, written: list[int]) -> None:
        """Write token `number`; the closing line goes out with the last one."""
        tokens = self._schedule.tokens
        data = chunks[number] if number < tokens - 1 else b"".join(chunks[number:])
        written.append(time.perf_counter_ns())
        self._transport.write(data)
        if number + 1 < tokens:
            due_s = self._first_s + (number + 1) * gap_s
            self._timer = self._loop.call_at(due_s, self._write, chunks, number + 1, gap_s, written)


def last_word(request: Any) -> str:
    """The name of the stream; the content is a text or, from some clients, a list of parts."""
    content = request["messages"][-1]["content"]
    text = content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
    return text.split()[-1]


def chunked(lines: list[bytes], kind: str) -> list[bytes]:
    """The bytes of a whole response, one item a line; the head goes with the first."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [b"%x\r\n%b\r\n" % (len(line), line) for line in lines]
    return [head + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]


def ndjson_lines(schedule: Schedule) -> list[bytes]:
    base = {"model": MODEL, "created_at": "2026-01-02T03:04:05.678901234Z"}
    lines = [
        {**base, "message": {"role": "assistant", "content": f" tok{n:04d}"}, "done": False}
        for n in range(schedule.tokens)
    ]
    end = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "length"}
    return [json.dumps(line).encode() + b"\n" for line in [*lines, {**base, **end, **schedule.figures()}]]


def sse_events(schedule: Schedule) -> list[bytes]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    deltas = [{"content": f" tok{n:04d}"} for n in range(schedule.tokens)]
    chunks: list[dict[str, Any]] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    usage = {"prompt_tokens": 100, "completion_tokens": schedule.tokens, "total_tokens": 100 + schedule.tokens}
    end = [
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
        {**base, "choices": [], "usage": usage},
    ]
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in [*chunks, *end]]
    return [*events, b"data: [DONE]\n\n"]


@contextlib.contextmanager
def mock_server(*args: str) -> Iterator[str]:
    """A mock server in a process of its own; its address."""
    with subprocess.Popen([sys.executable, __file__, *args], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def serve(schedule: Schedule, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(schedule), "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--rate", type=float, default=50, help="tokens a second of each stream")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each stream")
    args = parser.parse_args()
    schedule = Schedule(args.ttft_ms / 1000, args.rate, args.tokens)
    with contextlib.suppress(KeyboardInterrupt):
        fast_run(serve(schedule, args.port))


def fast_run(coroutine: Any) -> Any:
    """Run on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


if __name__ == "__main__":
    main()
