"""Predictions: between the medians, and no further than half as far again as was measured."""

import pytest
from lesson_runs import SECOND, burst, prompt_call, side

from llmlab.call import Call
from llmlab.report.predictions import Guess, Prediction, predictions
from llmlab.report.tables import answer


def predicted(calls: list[Call]) -> dict[tuple[str, int | None], Guess | None]:
    return {(p.name, p.tokens): p.guesses[0] for p in predictions([side(calls)])}


def prompts(*points: tuple[int, float]) -> list[Call]:
    return [prompt_call(tokens, tokens, seconds, 100, 10) for tokens, seconds in points]


def test_a_paste_waits_as_long_as_the_line_between_the_measured_prompts_says() -> None:
    found = predicted(prompts((100, 1), (1000, 10), (3000, 50)))
    assert found["paste_wait_ns", 1000] == Guess(10 * SECOND)
    assert found["paste_wait_ns", 2000] == Guess(30 * SECOND)
    assert found["paste_wait_ns", 4000] == Guess(70 * SECOND)
    assert found["largest_paste_tokens", None] == Guess(500)


def test_nothing_is_said_far_beyond_what_was_measured() -> None:
    found = predicted(prompts((100, 1), (1000, 10)))
    waits = {tokens: guess for (name, tokens), guess in found.items() if name == "paste_wait_ns"}
    assert waits == {
        250: Guess(2.5 * SECOND),
        500: Guess(5 * SECOND),
        1000: Guess(10 * SECOND),
        2000: Guess(None, "?"),
    }


def test_a_run_that_measured_less_is_not_stretched_to_the_reach_of_another() -> None:
    short, long = prompts((100, 1), (1000, 10)), prompts((100, 1), (3000, 30))
    found = {p.tokens: p.guesses for p in predictions([side(short), side(long)]) if p.tokens}
    assert found[4000] == (Guess(None, "?"), Guess(40 * SECOND))
    assert found[8000] == (Guess(None, "?"), Guess(None, "?"))


@pytest.mark.parametrize(
    ("points", "guess"),
    [
        (((100, 6), (1000, 10)), Guess(100, "<")),
        (((100, 1), (1000, 2)), Guess(1500, ">")),
        (((100, 1), (1000, 4)), Guess(1300)),
        (((100, 1), (1000, 7), (3000, 6)), Guess(700)),
    ],
)
def test_the_largest_paste_for_five_seconds(points: tuple[tuple[int, float], ...], guess: Guess) -> None:
    found = predicted(prompts(*points))["largest_paste_tokens", None]
    assert found is not None and found.value == pytest.approx(guess.value) and found.bound == guess.bound


def test_faster_on_longer_prompts_never_predicts_less_than_nothing() -> None:
    assert predicted(prompts((1000, 5), (3000, 1)))["paste_wait_ns", 4000] == Guess(0.0)


def crowd(*worst_s: float) -> list[Call]:
    waits = zip((1, 2, 4, 8), worst_s, strict=True)
    return [call for users, wait_s in waits for call in burst(users, 1, 1, ttft_ns=int(wait_s * SECOND))]


def test_users_before_the_last_one_waits_over_ten_seconds() -> None:
    assert predicted(crowd(2, 4, 8, 16))["users_within_10_s", None] == Guess(5)
    assert predicted(crowd(2, 3, 4, 5))["users_within_10_s", None] == Guess(8, ">")
    assert predicted(crowd(12, 24, 48, 96))["users_within_10_s", None] == Guess(1, "<")


def test_what_was_not_measured_is_not_predicted() -> None:
    assert predictions([side([])]) == []
    assert predictions([side(prompts((100, 1)))]) == []


def test_guesses_are_put_in_words() -> None:
    wait, paste, users = (
        Prediction(name=name, guesses=()) for name in ("paste_wait_ns", "largest_paste_tokens", "users_within_10_s")
    )
    assert answer(wait, Guess(30 * SECOND)) == "30 s"
    assert answer(wait, Guess(None, "?")) == "beyond what was measured"
    assert [answer(paste, Guess(1500, bound)) for bound in "<=>"] == [
        "under 1,500 tokens",
        "1,500 tokens",
        "over 1,500 tokens",
    ]
    assert [answer(users, Guess(8, bound)) for bound in "<=>"] == ["not even 1", "8", "8 or more"]
    assert answer(users, None) == "–"
