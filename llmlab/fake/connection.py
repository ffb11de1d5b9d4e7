"""The fake server's connections: HTTP over bare asyncio sockets, and Ollama's small pages."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from llmlab.fake.chat import Chat
from llmlab.fake.state import BrokenOff, FakeModel, Replay, Served, sleep_until

DIGEST = "fa4e" * 16


class Connection(asyncio.Protocol):
    """One client connection; a client that leaves cancels its call at once."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.task:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.task is None:
            self.next_request()

    def next_request(self) -> None:
        """Start the next request if it is here with its whole body."""
        head, mark, rest = self.buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = lines[0].split(" ", 2)
        self.task = asyncio.get_running_loop().create_task(self.answer_request(method, path, rest[:length]))

    async def answer_request(self, method: str, path: str, body: bytes) -> None:
        try:
            await Request(self, method, path.partition("?")[0], body).answer()
        except (BrokenOff, asyncio.CancelledError):
            self.transport.close()
            return
        finally:
            self.task = None
        self.next_request()

    def send_json(self, data: object, status: int = 200) -> None:
        raw = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
        head = f"Content-Type: application/json; charset=utf-8\r\nContent-Length: {len(raw)}\r\n\r\n"
        self.transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}".encode() + raw)

    def start_stream(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}Transfer-Encoding: chunked\r\n\r\n"
        self.head = head.encode()

    def send_chunk(self, data: bytes) -> None:
        """Write one chunk; the status line goes out with the first one, as Ollama does."""
        self.transport.write(b"%b%x\r\n%b\r\n" % (self.head, len(data), data))
        self.head = b""

    def end_stream(self) -> None:
        self.transport.write(self.head + b"0\r\n\r\n")


class Request:
    """One request on a connection."""

    def __init__(self, connection: Connection, method: str, path: str, raw: bytes) -> None:
        self.out = connection
        self.model = connection.model
        self.figures = connection.model.figures
        self.method, self.path, self.raw = method, path, raw

    async def answer(self) -> None:
        self.model.requests.append(f"{self.method} {self.path}")
        if self.path in ("/api/chat", "/v1/chat/completions") and not self.missing():
            try:
                body = json.loads(self.raw)
            except ValueError:
                self.out.send_json({"error": "invalid character in the request body"}, 400)
                return
            await self.chat(body)
            return
        page = None if self.missing() or self.path in self.figures.absent else self.pages().get(self.path)
        self.out.send_json({"error": "not found"} if page is None else page(), 404 if page is None else 200)

    def missing(self) -> bool:
        return self.figures.openai_only and self.path.startswith("/api/")

    def pages(self) -> dict[str, Callable[[], object]]:
        return {
            "/api/version": lambda: {"version": self.figures.version},
            "/api/tags": lambda: {"models": [self.tag()]},
            "/api/ps": self.loaded,
            "/api/show": self.show,
            "/v1/models": lambda: {"object": "list", "data": [{"id": self.figures.model, "object": "model"}]},
            "/props": lambda: {"default_generation_settings": {"n_ctx": self.model.window({})}},
            "/fake/served": lambda: [asdict(served) for served in self.model.served],
            "/fake/requests": lambda: self.model.requests,
        }

    def tag(self) -> dict[str, Any]:
        details = {"format": "gguf", "family": "fake", "parameter_size": "1M", "quantization_level": "Q4_1"}
        name = self.figures.model
        return {
            "name": name,
            "model": name,
            "modified_at": "2026-11-30T06:59:46.332558001Z",
            "size": self.figures.size_bytes,
            "digest": DIGEST,
            "details": details,
        }

    def loaded(self) -> dict[str, Any]:
        names = [(self.figures.model, self.model.loaded_ctx)] if self.model.loaded_ctx else []
        rows = [
            {
                "name": name,
                "model": name,
                "size": self.figures.size_bytes,
                "size_vram": self.figures.size_vram_bytes,
                "digest": DIGEST if name == self.figures.model else "0" * 64,
                "context_length": window,
            }
            for name, window in [*names, *((other, 4096) for other in self.figures.other_loaded)]
        ]
        return {"models": rows}

    def show(self) -> dict[str, Any]:
        can_think = self.figures.thinking_tokens > 0
        return {
            "details": self.tag()["details"],
            "model_info": {"general.architecture": "fake", "fake.context_length": self.figures.model_context},
            "capabilities": ["completion", "thinking"] if can_think else ["completion"],
        }

    async def chat(self, body: dict[str, Any]) -> None:
        model = self.model
        served = Served(number=len(model.served), path=self.path, body=body, arrived_ns=time.perf_counter_ns())
        model.served.append(served)
        model.running += 1
        try:
            if served.number < len(model.replays):
                await self.replay(model.replays[served.number], served)
            else:
                await Chat(self.out, model, served).answer()
        except asyncio.CancelledError:
            served.gone = True
            raise
        finally:
            served.done_ns = time.perf_counter_ns()
            model.running -= 1

    async def replay(self, replay: Replay, served: Served) -> None:
        served.status = replay.status
        self.out.start_stream(replay.status, replay.headers)
        for after_ns, data in replay.chunks:
            await sleep_until(served.arrived_ns + after_ns)
            served.last_ns = time.perf_counter_ns()
            served.first_ns = served.first_ns or served.last_ns
            self.out.send_chunk(data)
        if not replay.ended:
            raise BrokenOff
        self.out.end_stream()
