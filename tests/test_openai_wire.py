"""The OpenAI-compatible wire alone: bodies to send, and bytes to events."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.client.events import Done, Event, Fault, Piece, ToolCalls
from llmlab.client.openai import OpenAIWire, request_body
from llmlab.client.options import ChatOptions
from llmlab.messages import Message

ASKED = [Message("user", "hi")]
END = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def read(*chunks: bytes) -> list[Event]:
    wire = OpenAIWire()
    events = [found for chunk in chunks for found in wire.feed(chunk)]
    return events + wire.end()


def content(events: list[Event]) -> str:
    return "".join(found.text for found in events if isinstance(found, Piece) and found.kind == "content")


def last(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def test_a_request_has_no_window_but_asks_for_usage() -> None:
    options = ChatOptions(
        model="m", num_ctx=4096, num_predict=32, options={"seed": 7, "shift": False}, keep_alive=5, truncate=False
    )
    assert request_body(ASKED, options) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 32,
        "seed": 7,
    }


@pytest.mark.parametrize("limit", [0, -1, -2])
def test_no_limit_is_no_key(limit: int) -> None:
    assert "max_tokens" not in request_body(ASKED, ChatOptions(model="m", num_predict=limit))
    assert "max_tokens" not in request_body(ASKED, ChatOptions(model="m", options={"num_predict": limit}))


def test_usage_can_be_left_out() -> None:
    assert "stream_options" not in request_body(ASKED, ChatOptions(model="m"), include_usage=False)


@pytest.mark.parametrize(
    ("think", "sent"),
    [
        (None, {}),
        (False, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("low", {"reasoning_effort": "low"}),
    ],
)
def test_thinking_is_asked_for_only_when_given(think: bool | str | None, sent: dict[str, Any]) -> None:
    body = request_body(ASKED, ChatOptions(model="m", think=think))
    assert {key: body[key] for key in body if key in ("chat_template_kwargs", "reasoning_effort")} == sent


def test_a_stream_with_usage_in_a_chunk_of_its_own() -> None:
    usage = {
        "choices": [],
        "usage": {"prompt_tokens": 14, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 9}},
    }
    events = read(delta(role="assistant", content=""), delta(content="Red"), delta("length"), event(usage), END)
    assert events == [
        Piece("content", "Red"),
        Done(reason="length", prompt_tokens=14, cached_tokens=9, output_tokens=20),
    ]


def test_a_server_without_usage() -> None:
    assert read(delta(content="Red"), delta("stop"), END)[-1] == Done(reason="stop")
    null = event({"choices": [{"delta": {"content": "x"}}], "usage": None})
    assert read(null, delta("stop"), END)[-1] == Done(reason="stop")


def test_timings_of_llama_server() -> None:
    timings = {"cache_n": 100, "prompt_n": 20, "prompt_ms": 60.5, "predicted_n": 40, "predicted_ms": 1000.0}
    chunk = {"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings}
    assert last(read(delta(content="a"), event(chunk), END)) == Done(
        reason="stop",
        prompt_tokens=120,
        cached_tokens=100,
        output_tokens=40,
        prefill_ns=60_500_000,
        decode_ns=1_000_000_000,
    )


@pytest.mark.parametrize("end", [b"", b"data: [DONE]", b"data:[DONE]\n"])
def test_an_end_without_ceremony(end: bytes) -> None:
    assert read(delta(content="a"), delta("stop"), end) == [Piece("content", "a"), Done(reason="stop")]


def test_an_answer_that_only_stops_has_no_end() -> None:
    assert read(delta(content="a")) == [Piece("content", "a")]
    assert read(delta(content="a"), b'data: {"choices":[{"del') == [Piece("content", "a")]


def test_done_without_a_reason() -> None:
    assert last(read(delta(content="a"), END)).reason is None


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_by_any_name(key: str) -> None:
    events = read(delta(**{key: "hm", "content": None}), delta(content="42"), END)
    assert events[:2] == [Piece("thinking", "hm"), Piece("content", "42")]


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, "?", {"type": "text", "text": "b"}]
    assert content(read(delta(content=parts), END)) == "ab"


def test_fragments_of_tool_calls_are_put_together_in_order() -> None:
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    second = {"index": 1, "id": "c2", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    events = read(
        delta(tool_calls=[first]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"Aville"}'}}, second]),
        delta("tool_calls"),
        END,
    )
    assert events[0] == ToolCalls([])
    assert events[-2] == ToolCalls(
        [
            {"function": {"name": "weather", "arguments": '{"city":"Aville"}'}, "id": "c1", "type": "function"},
            {"function": {"name": "time", "arguments": "{}"}, "id": "c2", "type": "function"},
        ]
    )
    assert last(events).reason == "tool_calls"


def test_comments_and_other_fields_are_nothing() -> None:
    noise = b": ping\n\nevent: message\nid: 7\nretry: 100\n\n"
    assert content(read(noise, delta(content="a"), noise, END)) == "a"


def test_an_event_over_several_data_lines() -> None:
    text = json.dumps({"choices": [{"delta": {"content": "a"}}]}, indent=1)
    lines = b"".join(b"data: " + part.encode() + b"\r\n" for part in text.split("\n"))
    assert content(read(lines, b"\r\n", END)) == "a"


@pytest.mark.parametrize(
    "error", [{"message": "too long", "code": 400}, "too long", {"error": {"message": "too long"}}]
)
def test_an_error_in_mid_answer(error: object) -> None:
    for chunk in (event({"error": error}), json.dumps({"error": error}).encode() + b"\n"):
        events = read(delta(content="a"), chunk, delta(content="b"))
        assert content(events) == "a"
        assert isinstance(events[-1], Fault)
        assert events[-1].what == "too long"


def test_a_whole_answer_in_one_body() -> None:
    whole = {
        "choices": [{"message": {"role": "assistant", "content": "Red"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    for body in (json.dumps(whole).encode(), json.dumps(whole, indent=2).encode()):
        assert read(body) == [Piece("content", "Red"), Done(reason="stop", prompt_tokens=3, output_tokens=1)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>Sign in</html>", "HTML page"),
        (b"Ollama is running", "did not answer like"),
        (b"[1]\n", "did not answer like"),
        (b'{"message":{"content":"Hi"},"done":false}\n', "speaks Ollama's protocol"),
        (b'{"response":"Hi"}', "speaks Ollama's protocol"),
        (b"data: oops\n\n", "not a JSON object"),
        (b"{broken\n", "did not answer like"),
    ],
)
def test_other_services_are_no_answer(body: bytes, words: str) -> None:
    events = read(body)
    assert len(events) == 1
    assert isinstance(events[0], Fault)
    assert words in events[0].what


def test_an_object_over_several_lines_may_hold_anything() -> None:
    body = b"{\n" + delta(content="a")
    for cut in range(len(body)):
        assert repr(read(body[:cut], body[cut:])) == repr(read(body))


def test_only_the_first_choice_is_the_answer() -> None:
    two = event({"choices": [{"index": 1, "delta": {"content": "x"}}, {"index": 0, "delta": {"content": "a"}}]})
    assert content(read(two, END)) == "a"


@pytest.mark.parametrize("value", [-1, 2**63, float("nan"), "9", True])
def test_impossible_figures_are_unknown_and_said(value: object) -> None:
    chunk = {
        "choices": [{"delta": {}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": value,
            "completion_tokens": value,
            "prompt_tokens_details": {"cached_tokens": value},
        },
        "timings": {"prompt_ms": value, "predicted_ms": value},
    }
    assert last(read(event(chunk))) == Done(reason="stop", odd=True)


KEYS = st.sampled_from(
    ["choices", "delta", "message", "content", "tool_calls", "index", "function", "name", "arguments", "usage", "error",
     "finish_reason", "timings", "prompt_tokens", "prompt_ms", "done", "reasoning"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)
CHUNKS = st.one_of(
    st.binary(max_size=30),
    VALUES.map(event),
    st.lists(st.fixed_dictionaries({"delta": st.dictionaries(KEYS, VALUES, max_size=4)}), max_size=2).map(
        lambda choices: event({"choices": choices})
    ),
    st.sampled_from([END, b": c\n", b"data: {\n", b"{\n", b"\r\n"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(CHUNKS, max_size=6).map(b"".join), st.lists(st.integers(0, 300), max_size=6))
def test_any_bytes_cut_anywhere_give_the_same_events(body: bytes, cuts: list[int]) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(body)), len(body)})
    chunks = [body[start:end] for start, end in pairwise(places)]
    assert repr(read(*chunks)) == repr(read(body))
