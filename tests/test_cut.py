"""Silent cuts: every answer and refusal that real servers were seen to give, and the lines people read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.call import Call
from llmlab.cut import Refused, is_half, line, outgrew, refusal, refused_evidence, shrunk, suspicion, too_long

COUNTS = {"code": 400, "message": "words", "type": "exceed_context_size_error", "n_prompt_tokens": 1726, "n_ctx": 512}


def read(prompt_tokens: int | None, output_tokens: int | None = 40, model_id: str = "m") -> Call:
    return Call(prompt_tokens=prompt_tokens, output_tokens=output_tokens, model_id=model_id)


# Refusals


@pytest.mark.parametrize(
    "body",
    [
        {"error": json.dumps({"error": COUNTS})},
        json.dumps({"error": json.dumps({"error": COUNTS})}),
        json.dumps({"error": json.dumps({"error": COUNTS})}).encode(),
        {"error": COUNTS},
        json.dumps({"error": COUNTS}),
        {"error": "the runner said: " + json.dumps({"error": COUNTS}) + " and stopped"},
        COUNTS,
    ],
    ids=["json_in_json", "text", "bytes", "openai", "openai_text", "words_around", "bare"],
)
@pytest.mark.parametrize("status", [400, 413, 500, None])
def test_counts_are_found_wherever_they_stand(body: object, status: int | None) -> None:
    assert refusal(body, status) == Refused(1726, 512)


@pytest.mark.parametrize(
    "body",
    [
        {"error": "the input length exceeds the context length"},
        {"error": "le texte est trop long"},
        "plain words",
        '{"error": "prompt exceeds the available context"}',
        "",
        None,
        [],
        '{"error": {',
        {"error": {"message": "words", "n_prompt_tokens": None, "n_ctx": True}},
    ],
)
def test_mere_words_may_be_a_refusal_of_length_only_as_a_400(body: object) -> None:
    assert refusal(body, 400) == Refused(None, None)
    for status in (None, 200, 401, 403, 404, 500, 503):
        assert refusal(body, status) is None


def test_one_count_is_better_than_none_but_a_window_alone_is_no_refusal() -> None:
    assert refusal({"error": {"n_ctx": 2048}}, 400) == Refused(None, 2048)
    assert refusal({"error": {"n_ctx": 2048}}, 503) is None
    assert refusal({"error": {"n_prompt_tokens": 2048}}, 500) == Refused(2048, None)


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
KEYS = st.sampled_from(["error", "n_ctx", "n_prompt_tokens", "message"])


@given(st.recursive(LEAVES, lambda v: st.dictionaries(KEYS, v, max_size=3) | st.lists(v, max_size=2), max_leaves=6))
def test_no_body_breaks_the_reading(body: object) -> None:
    for found in (refusal(body, 400), refusal(json.dumps(body), 400), refusal({"error": json.dumps(body)}, 400)):
        assert found is not None
        assert all(n is None or n > 0 for n in (found.n_prompt_tokens, found.n_ctx))
    found = refusal(body, 503)
    assert found is None or found.n_prompt_tokens is not None


def test_a_bomb_of_brackets_is_only_words() -> None:
    assert refusal('{"a":' * 100_000, 400) == Refused()


def test_too_long_goes_by_counts_else_by_the_estimate() -> None:
    assert too_long(Refused(1726, 512), 10, 4096)
    assert not too_long(Refused(100, 512), 9000, 4096)
    assert too_long(Refused(), 3000, 4096)
    assert not too_long(Refused(), 2800, 4096)
    assert too_long(Refused(None, 512), 3000, 4096)


def test_what_a_refusal_proves_in_words() -> None:
    assert refused_evidence(Refused(1726, 512)) == "refused with truncate: false: 1,726 tokens for a window of 512"
    assert refused_evidence(Refused()) == "refused with truncate: false"


# Suspicion. Uncalibrated estimates of recorded prompts, what the servers read, and the window.

CUT = {
    "whole messages dropped": (1704, 478, 512),
    "whole messages dropped, native template": (1704, 499, 512),
    "whole messages dropped, system kept": (1724, 497, 512),
    "one message, half of the window": (1324, 258, 512),
    "one message, all of the window": (1324, 512, 512),
    "half of 4096": (12_000, 2050, 4096),
    "all of 4096": (12_000, 4096, 4096),
    "half of 65536": (100_000, 32_770, 65_536),
    "num_ctx 1": (10, 4, 1),
}

UNCUT = {
    "two words": (10, 10, 4096),
    "short": (15, 14, 4096),
    "short, default system prompt": (15, 35, 4096),
    "short in a small window": (28, 27, 256),
    "short in a small window, default system prompt": (28, 48, 256),
    "text": (445, 444, 4096),
    "long": (1463, 1458, 4096),
    "long conversation": (1485, 1480, 4096),
    "seventeen messages": (1704, 1726, 4096),
    "seventeen messages, default system prompt": (1704, 1747, 4096),
    "longer than estimated": (3000, 4000, 4096),
    "half of the window, as estimated": (2100, 2050, 4096),
    "the whole window, as estimated": (4200, 4096, 4096),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("estimate", "tokens", "window"), CUT.values(), ids=CUT)
def test_every_recorded_cut_is_suspected(estimate: int, tokens: int, window: int, known: bool) -> None:
    evidence = suspicion(read(tokens), estimate, known, window)
    assert evidence is not None
    assert f"read {tokens:,} of about {estimate:,} tokens" in evidence


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("estimate", "tokens", "window"), UNCUT.values(), ids=UNCUT)
def test_no_recorded_uncut_call_is_suspected(estimate: int, tokens: int, window: int, known: bool) -> None:
    assert suspicion(read(tokens), estimate, known, window) is None


def test_a_known_ratio_makes_fifteen_percent_enough() -> None:
    assert suspicion(read(4030), 5040, True, 4096) == "read 4,030 of about 5,040 tokens"
    assert suspicion(read(4030), 5040, False, 4096) is None
    assert suspicion(read(3400), 4000, True, 4096) is None
    assert suspicion(read(3399), 4000, True, 4096) is not None


def test_half_or_all_of_the_window_is_named_where_the_ratio_is_unknown() -> None:
    assert suspicion(read(2050), 3500, False, 4096) == "read 2,050 of about 3,500 tokens, half of the window of 4,096"
    assert suspicion(read(4096), 5500, False, 4096) == "read 4,096 of about 5,500 tokens, all of the window of 4,096"
    assert suspicion(read(2200), 3500, False, 4096) is None


def test_a_prompt_far_from_the_window_is_not_suspected_however_odd_its_count() -> None:
    assert suspicion(read(60), 240, True, 4096) is None
    assert suspicion(read(60), 240, True, None) is not None


@pytest.mark.parametrize("tokens", [None, 0])
def test_no_count_is_no_reason(tokens: int | None) -> None:
    assert suspicion(read(tokens), 5000, True, 512) is None
    assert shrunk(read(1000), read(tokens), True) is None
    assert not is_half(read(None), 512)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.booleans(), st.none() | st.integers(1, 10**6))
def test_reading_at_least_the_estimate_is_never_suspected(more: int, estimate: int, known: bool, window: int) -> None:
    assert suspicion(read(estimate + more), estimate, known, window) is None


@pytest.mark.parametrize(("tokens", "window"), [(2050, 4096), (258, 512), (32_770, 65_536), (66, 128)])
def test_half_of_the_window(tokens: int, window: int) -> None:
    assert is_half(read(tokens), window)
    assert not is_half(read(tokens + window // 10), window)
    assert not is_half(read(tokens), None)


# Proof by shrinking


def test_a_conversation_that_grew_and_reads_less_is_proof() -> None:
    assert shrunk(read(3900), read(2050), True) == (
        "the conversation grew, and the prompt read fell from 3,900 to 2,050 tokens"
    )


def test_what_did_not_only_grow_or_shrink_is_no_proof() -> None:
    assert shrunk(None, read(2050), True) is None
    assert shrunk(read(3900), read(2050), False) is None
    assert shrunk(read(3900), read(3900), True) is None
    assert shrunk(read(None), read(2050), True) is None
    assert shrunk(read(3900, model_id="a"), read(2050, model_id="b"), True) is None


# Answers that outgrow the window


@pytest.mark.parametrize(
    ("prompt", "output", "window", "lost"),
    [(27, 463, 256, True), (27, 229, 256, False), (27, 230, 256, False), (48, 208, 256, False), (27, 40, None, False)],
)
def test_an_answer_past_the_end_of_the_window(prompt: int, output: int, window: int | None, lost: bool) -> None:
    assert (outgrew(read(prompt, output), window) is not None) == lost
    assert outgrew(read(prompt, None), window) is None


def test_the_lines_people_read() -> None:
    assert line(read(4030), 5040, "proved") == (
        "the model read 4,030 of about 5,040 tokens: the oldest part of this conversation is gone"
    )
    assert line(read(4030), 5040, "suspected") == (
        "the model read 4,030 of about 5,040 tokens: the oldest part of this conversation may be gone"
    )
    assert outgrew(read(27, 463), 256) == (
        "prompt and answer took 490 tokens in a window of 256: the model lost the oldest part while it answered"
    )
