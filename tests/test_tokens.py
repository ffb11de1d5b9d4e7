"""The estimate against real servers' counts, its promises for any text, and what the calibration survives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.messages import Message
from llmlab.tokens import (
    CONVERSATION_TOKENS,
    MEDIA_TOKENS,
    MESSAGE_TOKENS,
    Estimator,
    calibrate,
    estimate_message,
    estimate_messages,
    estimate_tokens,
)

SENTENCES = (
    "The harbour at Lindum was dredged in the spring of that year and the barges waited outside for eleven days.",
    "A clerk named Oswin kept the ledger of tolls and wrote every figure twice, once in black and once in red ink.",
    "When the river froze the carters moved the grain by sledge and charged a shilling more for every mile.",
    "The mill above the weir burned down in autumn and was rebuilt with a slate roof and two new wheels.",
    "Nobody in the town trusted the bridge, so they crossed it one at a time and never with a loaded cart.",
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=300)


def prose(count: int, first: int) -> str:
    """The numbered sentences of the recorded prompts."""
    return " ".join(f"({first + i}) {SENTENCES[i % 5]}" for i in range(count))


@pytest.mark.parametrize(
    ("prompt", "read", "within"),
    [("Name three primary colours.", 14, 1), ("hi", 10, 1), (prose(50, 100) + " Summarise.", 1453, 30)],
)
def test_close_to_what_a_server_counted(prompt: str, read: int, within: int) -> None:
    assert abs(estimate_messages([Message("user", prompt)]) - read) <= within


@pytest.mark.parametrize(
    "text",
    [
        "你好世界" * 25,
        "今日は良い天気ですね" * 10,
        "안녕하세요세계" * 10,
        "繁體中文" * 10,
        "ｶﾀｶﾅ" * 10,
        "㐀㐁㐂" * 10,
        "𠀀𠀁" * 10,
    ],
)
def test_chinese_japanese_korean_cost_at_least_four_fifths_of_a_token_a_character(text: str) -> None:
    assert estimate_tokens(text) >= 0.8 * len(text)


def test_mixed_scripts_add_up() -> None:
    assert estimate_tokens("Error: 文件未找到 at line 42") >= estimate_tokens("Error:  at line 42") + 5


@pytest.mark.parametrize(
    ("dearer", "cheaper"),
    [
        ("4815162342" * 10, "a harbour " * 10),
        ("if(x[i]==y){z+=1;}" * 5, "the barges waited o" * 5),
        ("Правительство " * 10, "the government " * 10),
        ("😀🎉🚀🔥" * 10, "a word or " * 4),
        ("حكومة السلطة" * 10, "a harbour is" * 10),
        ("QmFzZTY0IGlzIGxvbmc" * 10, "a harbour at Lindum" * 10),
    ],
)
def test_what_is_not_plain_prose_costs_more(dearer: str, cheaper: str) -> None:
    assert estimate_tokens(dearer) > estimate_tokens(cheaper)


def test_prose_is_about_four_characters_a_token() -> None:
    text = " ".join(SENTENCES)
    assert 3.5 < len(text) / estimate_tokens(text) < 5


def test_indentation_is_nearly_free() -> None:
    assert estimate_tokens(" " * 16 + "x = y") - estimate_tokens("x = y") <= 2


@given(TEXT, TEXT)
def test_appending_never_lowers_the_estimate(text: str, more: str) -> None:
    assert 0 <= estimate_tokens(text) <= estimate_tokens(text + more)


@given(TEXT, TEXT)
def test_joining_by_a_blank_line_costs_no_more_than_the_line(text: str, more: str) -> None:
    assert estimate_tokens(f"{text}\n\n{more}") <= estimate_tokens(text) + estimate_tokens(more) + 1


@given(st.characters(exclude_categories=()))
def test_every_character_costs_something(character: str) -> None:
    assert (estimate_tokens(character) == 0) == (character == "\r")


def test_nothing_costs_nothing() -> None:
    assert estimate_tokens("") == 0
    assert estimate_messages([]) == 0


def test_each_message_and_the_conversation_cost_template_tokens() -> None:
    tiny = [Message("user" if i % 2 == 0 else "assistant", "ok") for i in range(301)]
    assert estimate_messages(tiny) == 301 * (MESSAGE_TOKENS + estimate_tokens("ok")) + CONVERSATION_TOKENS
    assert estimate_messages(tiny) >= 301 * 5


def test_tool_calls_count_by_their_json() -> None:
    calls = [{"function": {"name": "weather", "arguments": {"city": "Lindum", "days": 3}}}]
    with_calls = estimate_message(Message("assistant", "", extra={"tool_calls": calls}))
    assert with_calls == MESSAGE_TOKENS + estimate_tokens(json.dumps({"tool_calls": calls}))


def test_past_thinking_is_not_counted() -> None:
    wire = {"role": "assistant", "content": "yes", "thinking": "hmm " * 3000}
    assert estimate_message(Message.from_wire(wire)) == MESSAGE_TOKENS + 1


def test_a_picture_counts_as_a_picture_and_not_as_its_base64() -> None:
    data = "iVBORw0KGgo" * 20_000
    ollama = Message.from_wire({"role": "user", "content": "What is this?", "images": [data, data]})
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": f"data:,{data}"}}]
    openai = Message.from_wire({"role": "user", "content": parts})
    plain = estimate_message(Message("user", "What is this?"))
    assert estimate_message(ollama) == plain + 2 * MEDIA_TOKENS
    assert estimate_message(openai) == plain + MEDIA_TOKENS


@pytest.mark.parametrize("content", [[None, 3, {"type": "text", "text": None}], [], {"a": object()}, 7])
def test_odd_content_is_counted_and_not_fatal(content: object) -> None:
    assert estimate_message(Message.from_wire({"role": "user", "content": content})) >= MESSAGE_TOKENS


def test_an_estimator_corrects_the_whole_prompt_and_rounds_up_once() -> None:
    messages = [Message("user", "ok"), Message("assistant", "ok"), Message("user", "ok")]
    raw = estimate_messages(messages)
    assert Estimator().messages(messages) == raw
    assert Estimator(1.1).messages(messages) == -(-raw * 11 // 10)
    assert Estimator(2.0).message(messages[0]) == 2 * estimate_message(messages[0])


def test_calibration_without_pairs_is_neutral() -> None:
    assert calibrate([]) == 1.0
    assert calibrate([(0, 10), (10, 0), (-5, 5)]) == 1.0


def test_calibration_finds_the_ratio() -> None:
    assert calibrate([(1000, 1250), (500, 625), (2000, 2500)]) == 1.25


def test_one_cut_call_does_not_spoil_calibration() -> None:
    assert calibrate([(1000, 1100), (900, 990), (12_000, 2050), (600, 660)]) == 1.1


def test_short_calls_that_are_mostly_template_do_not_spoil_calibration() -> None:
    assert calibrate([(14, 35)] * 12 + [(1000, 1020), (800, 816)]) == 1.02


@pytest.mark.parametrize(("pair", "ratio"), [((1000, 10), 0.5), ((100, 5000), 3.0)])
def test_calibration_is_clipped(pair: tuple[int, int], ratio: float) -> None:
    assert calibrate([pair]) == ratio


@given(st.lists(st.tuples(st.integers(-5, 10**6), st.integers(-5, 10**6)), max_size=20))
def test_calibration_stays_in_range_whatever_it_is_given(pairs: list[tuple[int, int]]) -> None:
    assert 0.5 <= calibrate(pairs) <= 3.0
    assert calibrate(pairs) == calibrate(reversed(pairs))
