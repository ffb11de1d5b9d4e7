"""Prompts: cold by construction, varied, and as long as asked."""

import re
from itertools import pairwise
from random import Random

import pytest

from llmlab.bench.lengths import Lengths
from llmlab.bench.prompts import SUMMARY, TOPICS, PromptMaker, nonce
from llmlab.bench.prose import count_words, prose
from llmlab.bench.words import ASK, conversation, fresh_word, pin_pair, recalls


@pytest.mark.parametrize("chars", [20, 57, 280, 281, 282, 283, 12_000])
def test_prose_is_exactly_as_long_as_asked(chars: int) -> None:
    texts = [prose(Random(seed), chars) for seed in range(20)]
    assert {len(text) for text in texts} == {chars}
    assert all(text.endswith(".") and not re.search(r"\.\.|  |,\.", text) for text in texts)


def test_prose_does_not_repeat_itself() -> None:
    text = prose(Random(1), 12_000)
    found = re.split(r"(?<=[.?]) ", text)
    assert len(set(found)) == len(found) > 150
    runs = [" ".join(words) for words in zip(*(text.split()[i:] for i in range(8)), strict=False)]
    assert len(set(runs)) > 0.95 * len(runs)


def test_texts_of_one_length_have_as_many_words() -> None:
    """So that characters predict tokens: within 3 % already at some 60 tokens of text."""
    words = [count_words(prose(Random(seed), 280)) for seed in range(50)]
    assert max(words) - min(words) <= 4


def test_a_nonce_is_eight_digits_and_never_the_same() -> None:
    found = [nonce() for _ in range(200)]
    assert len(set(found)) == 200 and all(re.fullmatch(r"[1-9]\d{7}", n) for n in found)


def test_a_prompt_begins_with_its_nonce_in_the_system_message() -> None:
    maker = PromptMaker(seed=1)
    prompt = maker.prompt(900, "place")
    system, user = prompt.messages
    assert (system.role, user.role) == ("system", "user")
    assert system.content.startswith(prompt.nonce) and user.content.endswith(SUMMARY)
    assert prompt.chars == 900 == len(system.content) + len(user.content)
    other = maker.prompt(900, "place")
    assert other.text == prompt.text and other.nonce != prompt.nonce
    assert maker.prompt(900, "elsewhere").text != prompt.text


def test_without_system_messages_the_nonce_begins_the_user_message() -> None:
    maker = PromptMaker(seed=1)
    maker.fold = True
    prompt = maker.prompt(900, "place")
    (user,) = prompt.messages
    assert user.role == "user" and user.content.startswith(prompt.nonce)


def test_users_of_a_burst_have_different_topics() -> None:
    maker = PromptMaker(seed=1)
    for repeat in range(1, 6):
        assert len({maker.short(user, repeat).ending for user in range(8)}) == 8
    assert len(set(TOPICS)) == len(TOPICS)


def test_two_counts_give_the_line_and_more_improve_it() -> None:
    lengths = Lengths()
    for chars in (450, 1800):
        lengths.learn(chars, round(12 + chars / 4.2))
    assert lengths.known
    assert lengths.tokens(lengths.chars(1000)) == pytest.approx(1000, rel=0.001)
    assert lengths.chars(3000) == pytest.approx((3000 - 12) * 4.2, rel=0.005)
    lengths.learn(4000, 1000)
    lengths.learn(9000, None)
    assert len(lengths.points) == 3


def test_one_count_or_none_still_gives_a_length() -> None:
    lengths = Lengths()
    assert not lengths.known and 300 < lengths.chars(100) < 500
    lengths.learn(450, 60)
    assert lengths.tokens(450) == pytest.approx(60)


def test_a_conversation_tells_the_word_once_and_asks_for_it_last() -> None:
    maker = PromptMaker(seed=1)
    for chars in (450, 1800):
        maker.lengths.learn(chars, 12 + chars // 4)
    messages = conversation(maker, "Quimbalo", 12, 102, "here")
    assert [m.role for m in messages] == ["user", "assistant"] * 13 + ["user"]
    assert ["Quimbalo" in m.content for m in messages] == [True, True] + [False] * 25
    assert messages[-1].content == ASK
    turns = [len(a.content) + len(b.content) for a, b in pairwise(messages[2:-1]) if a.role == "user"]
    assert {abs(chars - 4 * 92) <= 4 for chars in turns} == {True}
    assert [m.pinned for m in pin_pair(messages)] == [True, True] + [False] * 25


def test_words_are_fresh() -> None:
    used: list[str] = []
    for _ in range(40):
        used.append(fresh_word(used))
    assert len(set(used)) == 40


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        ("The code word is Quimbalo.", True),
        ('it was "QUIMBALO"', True),
        ("**quimbalo**", True),
        ("Quimbalos", False),
        ("The code word is Walnut.", False),
        ("", False),
    ],
)
def test_the_word_counts_in_any_case_and_only_as_a_word(answer: str, known: bool) -> None:
    assert recalls(answer, "Quimbalo") is known
