"""Findings: what a run says in words, and what it must not say."""

import pytest
from lesson_runs import burst, lesson_calls, lesson_run, overflow_call, prompt_call, repeat_call

from llmlab.call import Call
from llmlab.findings import findings


def said(calls: list[Call], **columns: object) -> str:
    return "\n".join(findings(calls, lesson_run(1, **columns)))


@pytest.mark.parametrize(
    ("number", "waits", "ceiling"), [(1, "194 s", "7.8 tok/s, and 1 user"), (2, "127 s", "8.1 tok/s, and 4 users")]
)
def test_each_run_of_the_lesson_states_the_three_findings(number: int, waits: str, ceiling: str) -> None:
    prompt, prefix, users = findings(lesson_calls(number), lesson_run(number))
    assert prompt.startswith("The prompt is the slow part") and f"{waits} for 2,745 tokens" in prompt
    assert "Prefill falls from" in prompt and "decode from" in prompt
    assert prefix.startswith("A repeated prefix is almost free") and waits in prefix
    assert prefix.endswith("Put what does not change first.")
    assert users.startswith("More users share a fixed total") and f"The ceiling here is {ceiling}" in users


def test_only_what_was_measured_is_said() -> None:
    assert findings([], lesson_run(1)) == []
    assert len(findings(lesson_calls(1)[:3], lesson_run(1))) == 1
    assert findings([prompt_call(100, 130, 7, 19, 8, outcome="error")] * 3, lesson_run(1)) == []


def test_a_machine_where_the_prompt_costs_nothing_is_not_told_otherwise() -> None:
    fast = [prompt_call(size, size, 0.5, 9000, 40) for size in (100, 1000, 3000)]
    assert "The prompt is not the slow part" in said(fast)


def test_no_reuse_is_said_when_there_is_none() -> None:
    assert said([repeat_call("first", 20), repeat_call("again", 19)]).startswith("No reuse here: the same prompt twice")


def test_speed_that_an_unrelated_prompt_has_too_is_not_the_caches() -> None:
    """The first call of all was slow for another reason."""
    calls = [repeat_call("first", 20), repeat_call("again", 2), repeat_call("control", 2.1)]
    assert said(calls).startswith("No reuse here")


def test_part_of_a_prefix_and_identical_prompts_only() -> None:
    assert said([repeat_call("first", 20), repeat_call("again", 9)]).startswith("A repeated prompt is partly reused")
    identical = [repeat_call("first", 20), repeat_call("again", 0.2), repeat_call("same_start", 19.5)]
    assert said(identical).endswith("But a new ending costs 20 s: only an identical prompt is reused.")


def test_a_total_that_still_grows_is_no_ceiling() -> None:
    growing = [call for users in (1, 2, 4, 8) for call in burst(users, 1, 10 * users)]
    assert said(growing).startswith("More users still get more out of this machine: 10 tok/s in total with 1 user")


def test_one_slot_is_said_to_queue_and_many_to_run_at_once() -> None:
    calls = [call for users in (1, 2, 4) for call in burst(users, 1, 10)]
    assert said(calls, slots=1).endswith("Answers were given one at a time: the others queue.")
    assert said(calls, slots=2).endswith(" 2 answers ran at once.")
    assert said(calls, slots=4).endswith("At least 4 answers ran at once.")


def test_the_word_is_lost_without_the_budget_and_kept_with_it() -> None:
    calls = [
        overflow_call(2, "no_budget", True),
        overflow_call(12, "no_budget", False, cut="proved"),
        overflow_call(12, "budget_pin", True),
    ]
    lost, kept = said(calls).split(". ")
    assert lost == "After 12 turns the word was lost (cut by the server)"
    assert kept == "With the budget and the word pinned it came back."
    assert "nothing was lost" in said(calls[:1])
