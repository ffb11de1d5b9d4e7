"""What the fake server's connections share: the model's state, and the record of what was truly done."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmlab.fake.model import Figures, PrefixCache


@dataclass(kw_only=True)
class Served:
    """What the fake truly did for one chat call; moments are `time.perf_counter_ns()`, None where it never came."""

    number: int
    path: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    arrived_ns: int = 0
    started_ns: int | None = None
    loaded_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    done_ns: int | None = None
    read_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    gone: bool = False

    @property
    def ttft_ns(self) -> int | None:
        return None if self.first_ns is None else self.first_ns - self.arrived_ns

    @property
    def load_ns(self) -> int:
        return (self.loaded_ns or 0) - (self.started_ns or 0)

    @property
    def prefill_ns(self) -> int:
        return (self.first_ns or 0) - (self.loaded_ns or 0)

    @property
    def decode_ns(self) -> int:
        """First piece to the end token, as Ollama counts it: n tokens, n − 1 gaps where the answer was cut."""
        return (self.last_ns or 0) - (self.first_ns or 0)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A recorded answer: its bytes, each with the nanoseconds after the request at which they are written again."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/x-ndjson"),)
    chunks: tuple[tuple[int, bytes], ...] = ()
    ended: bool = True


class BrokenOff(Exception):
    """The connection is closed in mid-answer."""


class FakeModel:
    """The state all connections share: what is loaded, who waits, what was served."""

    def __init__(self, figures: Figures, replays: Sequence[Replay] = ()) -> None:
        self.figures = figures
        self.replays = list(replays)
        self.served: list[Served] = []
        self.requests: list[str] = []
        self.cache = PrefixCache(figures.reuse_prompts)
        self.loaded_ctx: int | None = None
        self.first_prefill = False
        self.running = 0
        self.decoding = 0
        self.free_slots = asyncio.Semaphore(figures.slots)
        self.loading = asyncio.Lock()

    def window(self, body: dict[str, Any]) -> int:
        asked = (body.get("options") or {}).get("num_ctx") or 4096
        if self.figures.window_busy and self.running > 1:
            return self.figures.window_busy
        return min(self.figures.window or max(4, int(asked)), self.figures.model_context)

    async def load(self, window: int) -> None:
        """Load the model unless it is there with the same window."""
        async with self.loading:
            if self.loaded_ctx != window and not (self.loaded_ctx and self.figures.window_busy):
                self.unload()
                await asyncio.sleep(self.figures.load_ns / 1e9)
                self.loaded_ctx, self.first_prefill = window, True

    def unload(self) -> None:
        self.loaded_ctx = None
        self.cache.clear()


async def sleep_until(moment_ns: float) -> None:
    """Sleep to a moment of `time.perf_counter_ns()`; deadlines do not add up their lateness."""
    await asyncio.sleep(max(0.0, (moment_ns - time.perf_counter_ns()) / 1e9))
