"""Progress and lag: what is said meanwhile, and how late it made us."""

import asyncio
import io
import itertools
import sys
import time
from pathlib import Path

import pytest

from llmlab.bench.lag import CoreWait, LoopLag, moves_a_figure
from llmlab.bench.progress import Progress, clock
from llmlab.call import Call

MS = 1_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_pipe_each_step_is_a_line() -> None:
    err = io.StringIO()
    with Progress(err) as progress:
        progress.step("users: 8 users at once, burst 1")
        progress.step("users: 8 users at once, burst 1")
        progress.expect(75)
        progress.step("anchor at the end")
        progress.note("the CPU is busy")
    assert err.getvalue().splitlines() == [
        "[0:00] users: 8 users at once, burst 1",
        "[0:00 of about 1:15] anchor at the end",
        "the CPU is busy",
    ]


def test_on_a_terminal_one_line_moves_and_is_gone_at_the_end() -> None:
    err = Terminal()
    with Progress(err) as progress:
        progress.step("overflow: 2 turns")
        progress.note("the model was reloaded")
        progress.step("overflow: 6 turns")
    shown = err.getvalue()
    assert "\r\x1b[2K[0:00] overflow: 2 turns" in shown
    assert "\r\x1b[2Kthe model was reloaded\n" in shown
    assert shown.endswith("\r\x1b[2K")


def test_a_closed_terminal_does_not_end_the_measuring() -> None:
    err = io.StringIO()
    progress = Progress(err)
    err.close()
    progress.step("users")
    progress.note("still here")
    assert progress.text == "users"


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03")])
def test_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


async def test_a_loop_that_was_held_up_is_seen() -> None:
    async with LoopLag() as lag:
        await asyncio.sleep(0)
        until = time.perf_counter_ns() + 60 * MS
        while time.perf_counter_ns() < until:
            pass
        await asyncio.sleep(0.011)
    assert lag.worst_ns() > 40 * MS


async def test_a_wait_for_a_core_that_no_timer_shows_is_seen() -> None:
    class Kept(CoreWait):
        waits_ns = itertools.chain([5 * MS, 12 * MS], itertools.repeat(12 * MS))

        def ns(self) -> int:
            return next(self.waits_ns)

    async with LoopLag() as lag:
        lag.wait.close()
        lag.wait = Kept()
        while not lag.late:  # noqa: ASYNC110 - what is waited for is not ours to signal
            await asyncio.sleep(0)
    assert 7 * MS in [late for _, late in lag.late]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_linux_counts_the_wait_for_a_core() -> None:
    wait = CoreWait()
    said_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    assert 0 <= said_ns <= wait.ns() <= wait.ns()
    wait.close()


def lag_of(late_ms: int, *, at_ms: int) -> LoopLag:
    """A loop that was late once, which was seen `at_ms` after the start."""
    lag = LoopLag()
    lag.late = [(lag.started_ns + at_ms * MS, late_ms * MS)]
    return lag


def test_only_a_lag_that_can_move_a_figure_by_two_percent_counts() -> None:
    burst = [Call(ttft_ns=500 * MS, last_piece_ns=2500 * MS, pieces=40)] * 3
    assert not moves_a_figure(lag_of(9, at_ms=100), burst)
    assert moves_a_figure(lag_of(11, at_ms=100), burst)
    slow = [Call(ttft_ns=9000 * MS, last_piece_ns=9400 * MS, pieces=40)]
    assert moves_a_figure(lag_of(9, at_ms=9200), slow)
    assert not moves_a_figure(lag_of(10**6, at_ms=0), [Call(outcome="error")])


def test_a_lag_after_the_last_first_token_moves_no_wait() -> None:
    burst = [Call(ttft_ns=ms * MS, last_piece_ns=2500 * MS, pieces=40) for ms in (100, 100, 900)]
    assert moves_a_figure(lag_of(20, at_ms=890), burst)
    assert moves_a_figure(lag_of(20, at_ms=925), burst), "it may have begun before"
    assert not moves_a_figure(lag_of(20, at_ms=2000), burst)
    assert moves_a_figure(lag_of(60, at_ms=2000), burst), "the speeds it moves all the same"
