"""A server that plays scripted answers over a real socket, chunk by chunk, with every way a connection can end."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

Step = Mapping[str, Any]
Response = Mapping[str, Any]

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


@dataclass
class Request:
    """What a client sent; `left` is set when its connection ended."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def line(content: str = "", **more: Any) -> Step:
    """One line of Ollama's stream."""
    return {"line": {"message": {"role": "assistant", "content": content}, "done": False, **more}}


def done_line(reason: str | None = "stop", content: str = "", **more: Any) -> Step:
    """Ollama's closing line: decode 40 tokens/s, prefill 2,000 tokens/s, unless `more` says otherwise."""
    figures: dict[str, Any] = {
        "total_duration": 1_300_000_000,
        "load_duration": 20_000_000,
        "prompt_eval_count": 120,
        "prompt_eval_duration": 60_000_000,
        "eval_count": 40,
        "eval_duration": 1_000_000_000,
    }
    if reason is not None:
        figures["done_reason"] = reason
    return line(content, **{k: v for k, v in {**figures, "done": True, **more}.items() if v is not None})


def answer(*steps: Step | str, end: str = "ok", **more: Any) -> Response:
    """A 200 answer of /api/chat; a text is short for a line of content."""
    headers = {"content-type": "application/x-ndjson"}
    body = [line(step) if isinstance(step, str) else step for step in steps]
    return {"status": 200, "headers": headers, "body": body, "end": end, **more}


def refusal(status: int, body: object = None, **headers: str) -> Response:
    """An answer with an error status and a JSON body."""
    steps = [] if body is None else [{"text": json.dumps(body)}]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"status": status, "headers": {"content-type": "application/json", **named}, "body": steps}


def json_answer(body: object, route: str) -> Response:
    """A 200 answer with a JSON body on `route`, as many times as it is asked."""
    return {
        "status": 200,
        "headers": {"content-type": "application/json"},
        "body": [{"text": json.dumps(body)}],
        "route": route,
        "always": True,
    }


class PlayedServer:
    """Plays `responses`: each route ("POST /api/chat" unless said) has its own queue, used up one per request.

    A response has `status`, `headers`, `body` steps (each its own chunk) and `end`; the status line is held back until
    the first step with bytes unless `headers_first`. Steps: `line` (an object as a JSON line), `text`, `hex`,
    `sleep_ms`, `burst` (steps in one write), `repeat_line` (one content line of `size` characters), `numbered_lines`
    (`times` lines of `content` with {n} replaced), `repeat_forever` (an object every `every_ms`), `wait` (an
    asyncio.Event), `call` (a function, before the next step). `end`: `ok`, `close` (no last chunk), `reset`.
    `drop_connection_without_response` reads the request and closes; `hang_up` closes without a word after a whole
    answer, as a server does that restarts. `always` keeps a response in its queue.
    `plain` answers without chunked encoding: `length` (Content-Length) or `eof` (until the connection closes).
    What no queue answers gets 404. `requests` are those received, `connections` the number of those opened, `answered`
    the number of responses played to their end.
    """

    def __init__(self, responses: Iterable[Response] = (), *, host: str = "127.0.0.1", ssl: Any = None) -> None:
        self._queues: dict[str, list[Response]] = {}
        for response in responses:
            self._queues.setdefault(response.get("route", "POST /api/chat"), []).append(response)
        self._host = host
        self._ssl = ssl
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.requests: list[Request] = []
        self.port = 0
        self.connections = 0
        self.answered = 0

    async def __aenter__(self) -> "PlayedServer":
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._ssl)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl else 'http'}://{host}:{self.port}"

    def drop_idle(self) -> None:
        """Close every connection, as a server does with idle ones."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        number = self.connections
        try:
            # Cancelled only when the server closes; asyncio's streams would report it as an error.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer, number):
                    pass
        finally:
            for request in self.requests:
                if request.connection == number:
                    request.left.set()
            writer.close()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        """Play one answer; whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *fields = head.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (text.partition(": ") for text in fields)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(method, path, headers, body, number)
        self.requests.append(request)
        response = self._next(f"{method} {path}")
        if response.get("drop_connection_without_response"):
            return False
        leaving = asyncio.ensure_future(reader.read(1))
        playing = asyncio.ensure_future(self._play(response, writer))
        try:
            await asyncio.wait({leaving, playing}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                return False
            self.answered += 1
            return playing.result()
        finally:
            playing.cancel()
            leaving.cancel()
            await asyncio.gather(playing, leaving, return_exceptions=True)

    def _next(self, route: str) -> Response:
        queue = self._queues.get(route)
        if not queue:
            return {"status": 404, "headers": {"content-type": "text/plain"}, "body": [{"text": "404 page not found"}]}
        return queue[0] if queue[0].get("always") else queue.pop(0)

    async def _play(self, response: Response, writer: asyncio.StreamWriter) -> bool:
        send = Sender(response, writer)
        if response.get("headers_first"):
            await send.start()
        for step in response.get("body", ()):
            await send.step(step)
        return await send.finish()


class Sender:
    """Writes one response."""

    def __init__(self, response: Response, writer: asyncio.StreamWriter) -> None:
        self._response = response
        self._writer = writer
        self._started = False
        self._plain = response.get("plain")

    async def start(self) -> None:
        if self._started:
            return
        self._started = True
        status = self._response.get("status", 200)
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in self._response.get("headers", {}).items()]
        if self._plain == "length":
            size = sum(len(step_bytes(step)) for step in self._response.get("body", ()))
            lines.append(f"Content-Length: {size}")
        elif self._plain != "eof":
            lines.append("Transfer-Encoding: chunked")
        self._writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    async def step(self, step: Step) -> None:
        if "sleep_ms" in step:
            await asyncio.sleep(step["sleep_ms"] / 1000)
        elif "wait" in step:
            event: asyncio.Event = step["wait"]
            await event.wait()
        elif "call" in step:
            function: Callable[[], Awaitable[None] | None] = step["call"]
            result = function()
            if result is not None:
                await result
        elif "burst" in step:
            await self._write(b"".join(step_bytes(inner) for inner in step["burst"]))
        elif "repeat_forever" in step:
            while True:
                await self._write(json_line(step["repeat_forever"]))
                await asyncio.sleep(step["every_ms"] / 1000)
        else:
            await self._write(step_bytes(step))

    async def finish(self) -> bool:
        """End the body as the script says; whether the connection goes on."""
        await self.start()
        end = self._response.get("end", "ok")
        if end == "reset":
            # Zero linger turns the close into a reset; the data before it has to be read first.
            await self._writer.drain()
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
            return False
        if end == "close" or self._plain == "eof":
            return False
        if self._plain != "length":
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return not self._response.get("hang_up")

    async def _write(self, data: bytes) -> None:
        if not data:
            return
        await self.start()
        self._writer.write(data if self._plain else b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()


def step_bytes(step: Step) -> bytes:
    """The bytes of a step that has some."""
    if "line" in step:
        return json_line(step["line"])
    if "text" in step:
        return str(step["text"]).encode()
    if "hex" in step:
        return bytes.fromhex(step["hex"])
    if "repeat_line" in step:
        script = step["repeat_line"]
        return json_line({"message": {"role": "assistant", "content": script["content"] * script["times"]}})
    if "numbered_lines" in step:
        script = step["numbered_lines"]
        numbers = range(script.get("times", script.get("count", 1)))
        return b"".join(
            json_line({"message": {"role": "assistant", "content": script["content"].replace("{n}", str(n))}})
            for n in numbers
        )
    return b""


def json_line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
