"""The screen: model text as it is on stdout, everything else on stderr."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

from llmlab.call import Call
from llmlab.client import Piece
from llmlab.conversation import Answer
from llmlab.figures import format_count, format_seconds, format_speed
from llmlab.printable import printable, printable_line

DIM, PLAIN, CLEAR = "\x1b[2m", "\x1b[0m", "\r\x1b[K"
TICK_S = 0.2
TAIL = 48
LEAST_TOKENS = 8
"""Fewer make no speed."""


class Screen:
    """Where a chat is shown. `live` (stderr is a terminal) allows a waiting line that is rewritten in place; NO_COLOR
    leaves out the dim style.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.live = self.err.isatty() and os.environ.get("TERM") != "dumb"
        styled = self.live and not os.environ.get("NO_COLOR")
        self._dimmed, self._plain = (DIM, PLAIN) if styled else ("", "")
        self._column = 0
        self._thinking = ""
        self._thought_ns = 0
        self._status: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[None]:
        """Show `what` with its seconds until the first piece: slow must not look like stuck."""
        self._thinking, self._thought_ns = "", time.perf_counter_ns()
        self._status = asyncio.create_task(self._tick(what)) if self.live else None
        try:
            yield
        finally:
            await self._stop_status()

    async def piece(self, piece: Piece) -> None:
        if piece.kind == "thinking":
            self._thinking += piece.text
            return
        if self._status is not None or self._thinking:
            await self._stop_status()
            self._fold_thinking()
        self.text(piece.text)

    def text(self, text: str) -> None:
        """Print model text on stdout."""
        shown = printable(text)
        self.out.write(shown)
        self.out.flush()
        if shown:
            self._column = 0 if shown.endswith("\n") else 1

    def end(self) -> None:
        """End the answer's last line."""
        self._fold_thinking()
        if self._column:
            self.text("\n")

    def note(self, line: str) -> None:
        """One line for the person."""
        self._dim(printable_line(line))

    def numbers(self, answer: Answer) -> None:
        """The three numbers, then what was dropped or cut."""
        self._dim(three_numbers(answer.call, thinks=bool(answer.thinking)))
        for line in answer.notes:
            self.note(line)

    def _dim(self, line: str) -> None:
        self.err.write(f"{self._dimmed}{line}{self._plain}\n")
        self.err.flush()

    def _fold_thinking(self) -> None:
        if self._thinking:
            seconds = format_seconds((time.perf_counter_ns() - self._thought_ns) / 1e9)
            hint = " · /thinking shows it" if self.live else ""
            self._dim(f"thought for {seconds}, {len(self._thinking):,} characters{hint}")
            self._thinking = ""

    async def _tick(self, what: str) -> None:
        started = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            doing = "thinking" if self._thinking else what
            tail = printable(" ".join(self._thinking.split()))[-TAIL:]
            line = f"{doing} {time.monotonic() - started:.0f} s {tail}"
            self.err.write(f"{CLEAR}{self._dimmed}{line}{self._plain}")
            self.err.flush()

    async def _stop_status(self) -> None:
        if self._status is None:
            return
        task, self._status = self._status, None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        self.err.write(CLEAR)
        self.err.flush()


def three_numbers(call: Call, *, thinks: bool = False) -> str:
    """Prompt tokens read, time to first token, tokens per second: `263 prompt tokens · 0.34 s to … · 41 tok/s`."""
    read = f"{format_count(call.prompt_tokens)} prompt tokens"
    if call.cached_tokens:
        read += f" ({format_count(call.cached_tokens)} cached)"
    speed = call.decode_tokens_per_s or call.user_tokens_per_s
    first = format_seconds(None if call.ttft_ns is None else call.ttft_ns / 1e9)
    answer = f" ({format_seconds(call.ttft_answer_ns / 1e9)} to the answer)" if thinks and call.ttft_answer_ns else ""
    too_short = speed is None and (call.output_tokens or LEAST_TOKENS) < LEAST_TOKENS
    rate = "too short for a speed" if too_short else format_speed(speed)
    return f"{read} · {first} to first token{answer} · {rate}"
