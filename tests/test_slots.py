"""Slots from the answers' own times."""

import pytest

from llmlab.bench.slots import Slots, burst_slots, run_slots, verdict
from llmlab.call import Call

MS = 1_000_000


def answer(first_ms: float, last_ms: float, pieces: int = 40, **columns: object) -> Call:
    times = {"ttft_ns": int(first_ms * MS), "ttft_answer_ns": int(first_ms * MS), "last_piece_ns": int(last_ms * MS)}
    return Call(**{**times, "pieces": pieces, "output_tokens": 40, **columns})  # type: ignore[arg-type]


def served(users: int, slots: int, wait_ms: float = 200, decode_ms: float = 1000) -> list[Call]:
    """A burst through a server that starts the next user when a slot is free."""
    round_ms = wait_ms + decode_ms
    starts = [user // slots * round_ms + wait_ms + user % slots for user in range(users)]
    return [answer(start, start + decode_ms) for start in starts]


@pytest.mark.parametrize("users", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8])
def test_the_number_of_slots_is_exact(users: int, slots: int) -> None:
    assert burst_slots(served(users, slots)) == Slots(min(users, slots), slots >= users)


def test_as_many_answers_as_users_is_only_a_lower_bound() -> None:
    assert [str(burst_slots(served(8, slots))) for slots in (4, 8)] == ["4", "≥ 8"]


def test_a_brief_overlap_does_not_count() -> None:
    """The next answer's first piece can overtake the last piece of the one before by a moment."""
    assert burst_slots([answer(100, 1100), answer(1050, 2050)]) == Slots(1, False)
    assert burst_slots([answer(100, 1100), answer(950, 1950), answer(1800, 2800)]) == Slots(2, False)


def test_answers_in_one_piece_are_placed_by_the_servers_decode_time() -> None:
    """One slot, 8 users, the whole answer at its end: the last second of each was its decoding."""
    burst = [answer(1200 * k, 1200 * k, pieces=1, decode_ns=1000 * MS) for k in range(1, 9)]
    assert burst_slots(burst) == Slots(1, False)
    together = [answer(1200, 1200, pieces=1, decode_ns=1000 * MS) for _ in range(4)]
    assert burst_slots(together) == Slots(4, True)


def test_failed_users_are_no_answers_but_they_asked() -> None:
    burst = [*served(3, 4), answer(0, 0, outcome="error")]
    assert burst_slots(burst) == Slots(3, False)
    assert burst_slots([Call(outcome="error")]) is None


def test_connections_opened_late_shift_their_answers() -> None:
    """`ttft_ns` starts when the request was written, the barrier lies before the connecting."""
    burst = [answer(100, 1100), answer(100, 1100, connect_ns=1500 * MS)]
    assert burst_slots(burst) == Slots(1, False)


def test_a_run_is_judged_by_its_largest_bursts() -> None:
    bursts = [served(2, 4), served(8, 4), served(8, 4), served(8, 1)]
    assert run_slots(bursts) == Slots(4, False)
    assert run_slots([]) is None


def test_queueing_is_told_from_sharing() -> None:
    assert "one at a time: 7 of 8 users queued" in verdict(Slots(1, False), 50, 50, 8)
    assert "shared the machine, 92 tok/s alone, 31 tok/s each; the other 4 queued" in verdict(
        Slots(4, False), 92, 31, 8
    )
    assert verdict(Slots(4, True), 50, 49, 4) == "≥ 4 answers ran at once at nearly full speed each"
