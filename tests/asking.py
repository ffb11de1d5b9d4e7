"""What the client's tests share: one chat to its end, and transports and clocks that follow a script."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from llmlab.call import Call, Label
from llmlab.client import ChatOptions, ChatStream, Client, Piece
from llmlab.errors import LabError
from llmlab.messages import Message
from llmlab.settings import Server

MS = 1_000_000
HELLO = (Message("user", "Say hello."),)


def server_at(url: str = "http://127.0.0.1:11434", api: str = "ollama", **more: Any) -> Server:
    return Server(url=url, source=more.pop("source", "--host"), api=api, **more)


class Reading:
    """How `chat` reads; the fixture `reading` has a test do it both ways."""

    as_a_whole = False


@dataclass
class Outcome:
    """How a chat went: what was shown, what was raised, and the one `Call`."""

    pieces: list[Piece]
    error: LabError | None
    call: Call
    stream: ChatStream

    @property
    def text(self) -> str:
        return self.stream.text

    @property
    def thinking(self) -> str:
        return self.stream.thinking


async def chat(
    client: Client,
    messages: Sequence[Message] = HELLO,
    *,
    label: Label = Label(),
    model: str = "demo:1b",
    **options: Any,
) -> Outcome:
    """One chat, read to its end or its error; `pieces` stays empty where it is read as a whole."""
    pieces, error = [], None
    async with client.chat(messages, ChatOptions(model=model, **options), label) as stream:
        try:
            if Reading.as_a_whole:
                stream.prepare()
                await stream.read()
            async for piece in stream:
                pieces.append(piece)
        except LabError as raised:
            error = raised
    return Outcome(pieces, error, stream.call, stream)


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until `condition` holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for is not ours to signal
        await asyncio.sleep(0)


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS

    def __call__(self) -> int:
        return self.now_ns

    def later(self, ms: float) -> Callable[[], None]:
        """A function that moves the clock on, for a script's `call` step."""

        def move() -> None:
            self.now_ns += int(ms * MS)

        return move


class Scripted(httpx.AsyncByteStream):
    """A body that takes its time on `clock`: each step is (milliseconds, bytes or an error to raise)."""

    def __init__(self, clock: Clock, steps: Iterable[tuple[float, bytes | Exception]]) -> None:
        self._clock = clock
        self._steps = list(steps)
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for ms, data in self._steps:
            self._clock.later(ms)()
            if isinstance(data, Exception):
                raise data
            yield data

    async def aclose(self) -> None:
        self.closed = True


def scripted(
    clock: Clock, *steps: tuple[float, bytes | Exception], status: int = 200, kind: str = "application/x-ndjson"
) -> httpx.MockTransport:
    """A transport whose one answer follows a script; no socket."""
    body = Scripted(clock, steps)
    return httpx.MockTransport(lambda request: httpx.Response(status, headers={"content-type": kind}, stream=body))
