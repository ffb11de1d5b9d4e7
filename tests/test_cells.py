"""Cells: what the calls of a run come to."""

import pytest
from lesson_runs import SECOND, burst, lesson_calls, overflow_call, prompt_call

from llmlab.call import Call
from llmlab.cells import Cell, cells, find_cell


def only(calls: list[Call]) -> Cell:
    (cell,) = cells(calls)
    return cell


def test_cells_come_in_the_order_of_the_lesson() -> None:
    calls = [overflow_call(2, "budget_pin", True), overflow_call(2, "no_budget", True), *lesson_calls(1)[::-1]]
    assert [c.key for c in cells(calls)] == [
        *(("prompt_length", None, size) for size in (100, 1000, 3000)),
        *(("repeat_prompt", variant, 3000) for variant in ("first", "again")),
        *(("users", None, users) for users in (1, 2, 4, 8)),
        *(("overflow", variant, 2) for variant in ("no_budget", "budget_pin")),
    ]


def test_only_measured_calls_count() -> None:
    other = [prompt_call(100, 130, 99, 19, 8, purpose=purpose) for purpose in ("warmup", "anchor", "probe", "answer")]
    assert only([prompt_call(100, 130, 7, 19, 8.6), *other]).figures["ttft_ns"].samples == (7 * SECOND,)


def test_a_failure_is_counted_and_never_averaged_in() -> None:
    bad = [
        prompt_call(100, 130, 0.01, 19, 8, outcome=outcome, error=f"{outcome}!")
        for outcome in ("timeout", "error", "incomplete")
    ]
    cell = only([*bad, prompt_call(100, 130, 7, 19, 8.6)])
    assert (cell.n, cell.failed, cell.error, cell.median("ttft_ns")) == (1, 3, "timeout!", 7 * SECOND)


def test_a_cell_with_nothing_good_has_no_figures() -> None:
    cell = only([prompt_call(100, 130, 7, 19, 8, outcome="error", error="HTTP 500: down")] * 2)
    assert (cell.n, cell.failed, cell.error, dict(cell.figures)) == (0, 2, "HTTP 500: down", {})


def test_what_ctrl_c_stopped_is_neither_measured_nor_failed() -> None:
    assert cells([prompt_call(100, 130, 7, 19, 8, outcome="cancelled")]) == []


def test_a_reloaded_call_gives_way_to_the_one_measured_again() -> None:
    again = only([prompt_call(100, 130, 30, 19, 8, flags="reloaded"), prompt_call(100, 130, 7, 19, 8)])
    assert (again.n, again.median("ttft_ns"), again.reloaded) == (1, 7 * SECOND, False)
    never = only([prompt_call(100, 130, 30, 19, 8, flags="reloaded"), prompt_call(100, 130, 7, 19, 8, outcome="error")])
    assert (never.n, never.reloaded, dict(never.flags)) == (1, True, {"reloaded": 1})


def test_a_figure_too_short_to_measure_is_not_there() -> None:
    """One token in a few microseconds would be a million tokens per second."""
    call = prompt_call(100, 130, 1, 19, 8, output_tokens=1, decode_ns=1000, last_piece_ns=SECOND)
    assert "decode_tokens_per_s" not in only([call]).figures
    assert "user_tokens_per_s" not in only([call]).figures


def test_decode_and_prefill_speed_are_of_their_own_tokens_and_times() -> None:
    call = prompt_call(
        30000, 30000, 15.05, 2000, 40, output_tokens=200, decode_ns=5 * SECOND, total_ns=int(20.1 * SECOND)
    )
    cell = only([call])
    assert cell.median("decode_tokens_per_s") == pytest.approx(40)
    assert cell.median("prefill_tokens_per_s") == pytest.approx(2000, rel=1e-6)


def test_a_burst_is_one_sample_of_median_worst_and_total() -> None:
    waits = [1, 2, 3, 10]
    calls = [c for repeat in (1, 2) for c in burst(4, 2.5, 8, repeat=repeat)]
    calls = [
        Call(
            **{
                **{k: v for k, v in c.row().items() if k not in ("id", "ttft_ns")},
                "ttft_ns": waits[(c.user or 1) - 1] * SECOND * (c.repeat or 1),
            }
        )
        for c in calls
    ]
    cell = only(calls)
    assert cell.n == 2
    assert cell.figures["ttft_ns"].samples == (2.5 * SECOND, 5 * SECOND)
    assert cell.figures["ttft_worst_ns"].samples == (10 * SECOND, 20 * SECOND)
    assert cell.staircase_ns == tuple(1.5 * wait * SECOND for wait in waits)


@pytest.mark.parametrize(("wall_s", "total"), [([2.5, 5.0, 7.5, 10.0], 40.0), ([5.0] * 4, 80.0)])
def test_total_speed_is_all_tokens_over_the_whole_burst(wall_s: list[float], total: float) -> None:
    """One after the other 400 tokens in 10 s are 40 tok/s; at once in 5 s they are 80: never a sum of rates."""
    calls = [
        call
        for user, end_s in enumerate(wall_s, 1)
        for call in burst(4, 1, 1, tokens=100, user=user, last_piece_ns=int(end_s * SECOND))[:1]
    ]
    assert only(calls).median("total_tokens_per_s") == pytest.approx(total)


def test_connecting_late_is_part_of_the_burst() -> None:
    calls = burst(2, 1, 1, tokens=100, last_piece_ns=3 * SECOND, connect_ns=SECOND)
    assert only(calls).median("total_tokens_per_s") == pytest.approx(50)


def test_a_failed_user_is_left_out_of_the_total_and_of_the_staircase() -> None:
    good = burst(4, 1, 20, tokens=100)
    bad = [Call(**{**good[3].row(), "id": "bad", "outcome": "error", "ttft_ns": None, "last_piece_ns": None})]
    cell = only([*good[:3], *bad])
    assert (cell.n, cell.failed, cell.staircase_ns) == (1, 1, ())
    assert cell.median("total_tokens_per_s") == pytest.approx(15)


def test_no_total_where_a_user_was_not_counted() -> None:
    calls = burst(2, 1, 20)
    cell = only([calls[0], Call(**{**calls[1].row(), "output_tokens": None})])
    assert "total_tokens_per_s" not in cell.figures
    assert cell.median("ttft_ns") is not None


def test_a_burst_that_a_crash_cut_off_is_not_a_sample() -> None:
    assert cells(burst(8, 1, 20)[:3]) == []
    resumed = [*burst(8, 1, 20)[:3], *burst(8, 2, 20)]
    assert only(resumed).n == 1
    assert only(resumed).median("ttft_ns") == pytest.approx(2 * SECOND, rel=0.01)


def test_every_forgotten_word_has_its_reason() -> None:
    calls = [
        overflow_call(12, "no_budget", True),
        overflow_call(12, "no_budget", False, cut="proved"),
        overflow_call(12, "no_budget", False, cut="suspected"),
        overflow_call(12, "no_budget", False, messages_dropped=4),
        overflow_call(12, "no_budget", False),
        overflow_call(12, "no_budget", None),
        overflow_call(12, "no_budget", False, flags="no_answer"),
    ]
    cell = only(calls)
    assert (cell.recalled, cell.asked, cell.cut, cell.lost) == (1, 7, "proved", True)
    assert cell.reasons == (
        *("cut by the server", "probably cut by the server", "dropped by the budget", "model forgot although it fit"),
        *("no answer", "no answer"),
    )


def test_a_refusal_of_an_overflow_is_a_result() -> None:
    calls = [
        overflow_call(12, "truncate_false", None, outcome="error", http_status=400, error="too long"),
        overflow_call(12, "truncate_false", None, outcome="error", http_status=500, error="down"),
    ]
    cell = only(calls)
    assert (cell.n, cell.refused, cell.failed, cell.error) == (0, 1, 1, "down")


def test_find_cell() -> None:
    measured = cells(lesson_calls(1))
    found = find_cell(measured, "repeat_prompt", "again")
    assert found is not None and found.variant == "again"
    assert find_cell(measured, "users", size=4) is not None
    assert find_cell(measured, "users", size=16) is None
