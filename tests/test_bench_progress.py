"""Progress and lag: what is said meanwhile, and how late it made us."""

import asyncio
import io
import time

import pytest

from llmlab.bench.lag import LoopLag, moves_a_figure
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
    assert lag.worst_ns > 40 * MS


def test_only_a_lag_that_can_move_a_figure_by_two_percent_counts() -> None:
    burst = [Call(ttft_ns=500 * MS, last_piece_ns=2500 * MS, pieces=40)] * 3
    assert not moves_a_figure(9 * MS, burst)
    assert moves_a_figure(11 * MS, burst)
    slow = [Call(ttft_ns=9000 * MS, last_piece_ns=9400 * MS, pieces=40)]
    assert moves_a_figure(9 * MS, slow)
    assert not moves_a_figure(10**12, [Call(outcome="error")])
