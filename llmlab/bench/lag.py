"""Lag: how late the event loop was, which is how late a time can have been taken."""

import asyncio
import time
from collections.abc import Sequence
from statistics import median

from llmlab.call import Call

TICK_S = 0.01
TIMER_NS = 1_500_000
"""Timers are up to this late on an idle loop: the system's own granularity."""
SHARE = 0.02
"""A figure must not be moved by more than this."""


class LoopLag:
    """Watches the running loop as an async context manager; `worst_ns` is the longest it did not get round to us."""

    worst_ns = 0

    async def __aenter__(self) -> "LoopLag":
        self.task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            before_ns = time.perf_counter_ns()
            await asyncio.sleep(TICK_S)
            late_ns = time.perf_counter_ns() - before_ns - round(TICK_S * 1e9) - TIMER_NS
            self.worst_ns = max(self.worst_ns, late_ns)


def moves_a_figure(lag_ns: int, burst: Sequence[Call]) -> bool:
    """Whether a lag can have moved the burst's waits or speeds by more than 2 %."""
    waits = [c.ttft_ns for c in burst if c.ttft_ns]
    spans = [c.last_piece_ns - c.ttft_ns for c in burst if c.last_piece_ns and c.ttft_ns and c.pieces > 1]
    figures = [median(values) for values in (waits, spans) if values]
    return any(lag_ns > SHARE * figure for figure in figures)
