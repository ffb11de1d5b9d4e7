"""Plan: what a run measures, how often, and that it survives a stop."""

from dataclasses import replace

import pytest

from llmlab.bench import BenchOptions, Plan, make_plan
from llmlab.bench.plan import PlannedCell, left_out
from llmlab.errors import UsageError


def test_the_lesson_is_the_default() -> None:
    plan = make_plan(BenchOptions())
    assert (plan.sizes, plan.users, plan.turns) == ((100, 1000, 3000), (1, 2, 4, 8), (2, 6, 12))
    assert (plan.num_ctx, plan.turn_tokens, plan.repeat_size) == (4096, 409, 3000)
    cells = list(plan.cells())
    assert len(cells) == 3 + 5 + 4 + 6
    assert cells[3] == PlannedCell("repeat_prompt", "first", 3000)
    assert [c.variant for c in plan.cells("overflow")][-3:] == ["truncate_false", "budget", "budget_pin"]


def test_quick_is_smaller_in_everything() -> None:
    quick, full = make_plan(BenchOptions(quick=True)), make_plan(BenchOptions())
    assert quick.num_ctx == 1024
    for name in ("num_ctx", "num_predict", "users_predict", "most_samples", "cell_s", "repeat_size"):
        assert getattr(quick, name) < getattr(full, name)


def test_numbers_are_sorted_and_once_each() -> None:
    assert make_plan(BenchOptions(sizes=(500, 100, 500), users=(4, 1))).sizes == (100, 500)


def test_a_server_that_tells_its_window_sets_it() -> None:
    assert make_plan(BenchOptions(num_ctx=2048), window=8192).num_ctx == 8192


def test_a_window_longer_than_the_models_own_is_not_asked_for() -> None:
    plan = make_plan(BenchOptions(), model_context=2048)
    assert (plan.num_ctx, plan.sizes, plan.turn_tokens) == (2048, (100, 1000), 204)
    with pytest.raises(UsageError, match=r"this model's longest window of 2,048\. Use --sizes 100$"):
        make_plan(BenchOptions(sizes=(100, 3000)), model_context=2048)


def test_default_sizes_that_do_not_fit_are_left_out() -> None:
    options = BenchOptions(num_ctx=2048)
    plan = make_plan(options)
    assert plan.sizes == (100, 1000) and left_out(options, plan) == (3000,)
    assert left_out(BenchOptions(sizes=(100,)), make_plan(BenchOptions(sizes=(100,)))) == ()


def test_experiments_come_in_the_order_of_the_lesson() -> None:
    plan = make_plan(BenchOptions(experiments=("users", "prompt_length")))
    assert plan.experiments == ("prompt_length", "users")


def test_a_plan_survives_its_row() -> None:
    plan = make_plan(BenchOptions(quick=True, repeat=3, seed=7))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("repeat", "samples", "spent_s", "more"),
    [
        (None, 0, 500.0, True),
        (None, 1, 29.9, True),
        (None, 1, 30.0, False),
        (None, 4, 1.0, True),
        (None, 5, 1.0, False),
        (2, 1, 500.0, True),
        (2, 2, 0.0, False),
    ],
)
def test_auto_is_five_samples_or_thirty_seconds_and_at_least_one(
    repeat: int | None, samples: int, spent_s: float, more: bool
) -> None:
    plan = replace(make_plan(BenchOptions()), repeat=repeat)
    assert plan.wants_more(samples, spent_s) is more


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (BenchOptions(num_ctx=2048, sizes=(100, 1000, 3000)), "Use --num-ctx 4096 or --sizes 100,1000"),
        (BenchOptions(sizes=(9000,)), "Use --num-ctx 16384"),
        (BenchOptions(sizes=()), "Use --sizes 100,1000,3000"),
        (BenchOptions(num_ctx=512, num_predict=500, experiments=("users",)), "Use --num-ctx 1024"),
    ],
)
def test_what_cannot_be_says_what_to_do(options: BenchOptions, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        make_plan(options)
    assert error.value.hint == hint


def test_overflow_alone_needs_no_room_for_long_prompts() -> None:
    assert make_plan(BenchOptions(num_ctx=512, experiments=("overflow",))).turn_tokens == 51
