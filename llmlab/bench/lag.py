"""Lag: how late the event loop was, which is how late a time can have been taken."""

import asyncio
import os
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
    """Watches the running loop as an async context manager, and keeps when it was late and by how much."""

    def __init__(self) -> None:
        self.started_ns = time.perf_counter_ns()
        self.late: list[tuple[int, int]] = []
        self.wait = CoreWait()

    async def __aenter__(self) -> "LoopLag":
        self.task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.wait.close()

    async def _watch(self) -> None:
        now_ns, waited_ns = time.perf_counter_ns(), self.wait.ns()
        while True:
            before_ns, waited_before_ns = now_ns, waited_ns
            await asyncio.sleep(TICK_S)
            now_ns, waited_ns = time.perf_counter_ns(), self.wait.ns()
            held_up_ns = now_ns - before_ns - round(TICK_S * 1e9)
            # What held the loop up between two looks shows in the timer only if it lasted until the second one.
            late_ns = max(held_up_ns if held_up_ns > TIMER_NS else 0, waited_ns - waited_before_ns)
            if late_ns > 0:
                self.late.append((now_ns, late_ns))

    def worst_ns(self, within_ns: int | None = None) -> int:
        """The longest that the loop did not get round to us, in the first `within_ns` or in all the time."""
        end_ns = None if within_ns is None else self.started_ns + within_ns
        # A delay that began in time is seen when it is over.
        return max((late for seen_ns, late in self.late if end_ns is None or seen_ns - late <= end_ns), default=0)


class CoreWait:
    """How long the thread that made it was ready to run and did not: Linux counts that, other systems do not say."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = None

    def ns(self) -> int:
        """Nanoseconds so far; 0 where the system does not say."""
        return 0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1])

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def moves_a_figure(lag: LoopLag, burst: Sequence[Call]) -> bool:
    """Whether the lag can have moved the burst's waits or speeds by more than 2 %.

    What happens after the last user's first token moves no wait.
    """
    waits = [c.ttft_ns for c in burst if c.ttft_ns]
    spans = [c.last_piece_ns - c.ttft_ns for c in burst if c.last_piece_ns and c.ttft_ns and c.pieces > 1]
    if waits and lag.worst_ns(max(waits) + round(TICK_S * 1e9)) > SHARE * median(waits):
        return True
    return bool(spans) and lag.worst_ns() > SHARE * median(spans)
