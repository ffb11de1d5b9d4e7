"""Ollama's wire alone: bodies to send, and bytes to events."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.call import Label
from llmlab.client.events import Done, Event, Fault, Piece, ToolCalls
from llmlab.client.ollama import OllamaWire, request_body
from llmlab.client.options import ChatOptions
from llmlab.client.record import Record
from llmlab.errors import LabError
from llmlab.messages import Message

ASKED = [Message("system", "Be brief."), Message("user", "hi", pinned=True)]


def line(content: str | None = "", **more: Any) -> bytes:
    value = {"message": {"role": "assistant", "content": content}, "done": False, **more}
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def done(**more: Any) -> bytes:
    return line("", done=True, **{"done_reason": "stop", "eval_count": 40, "eval_duration": 10**9, **more})


def read(*chunks: bytes) -> list[Event]:
    wire = OllamaWire()
    events = [event for chunk in chunks for event in wire.feed(chunk)]
    return events + wire.end()


def content(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece) and event.kind == "content")


def last(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def test_a_request_carries_what_was_given_and_no_more() -> None:
    assert request_body(ASKED, ChatOptions(model="m")) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream": True,
    }


def test_options_go_where_ollama_reads_them() -> None:
    options = ChatOptions(
        model="m", num_ctx=4096, num_predict=32, options={"seed": 7}, think=False, keep_alive=-1, truncate=False,
        extra={"format": "json"},
    )  # fmt: skip
    body = request_body(ASKED, options)
    assert body["options"] == {"seed": 7, "num_ctx": 4096, "num_predict": 32}
    assert (body["think"], body["keep_alive"], body["truncate"], body["format"]) == (False, -1, False, "json")


@pytest.mark.parametrize(
    "options",
    [
        ChatOptions(model="m", num_predict=0),
        ChatOptions(model="m", options={"num_predict": 0}),
        ChatOptions(model="m", options={"shift": False}, extra={"shift": False}),
    ],
)
def test_what_would_surprise_is_never_sent(options: ChatOptions) -> None:
    body = request_body(ASKED, options)
    assert "options" not in body
    assert "shift" not in body


def test_only_newlines_end_lines() -> None:
    text = "before\u0085after x\u2028y\u2029z"
    assert content(read(line(text), done())) == text


def test_a_character_may_be_cut_anywhere() -> None:
    data = line("naïve 中🙂") + done()
    for size in range(1, 12):
        events = read(*(data[start : start + size] for start in range(0, len(data), size)))
        assert content(events) == "naïve 中🙂"


def test_carriage_returns_and_blank_lines_are_nothing() -> None:
    events = read(line("A").replace(b"\n", b"\r"), b"\n\r\n\n   \n", line("B").replace(b"\n", b"\r\n"), done())
    assert content(events) == "AB"
    assert last(events).reason == "stop"


def test_the_last_line_needs_no_newline() -> None:
    events = read(line("ok"), line(" end", done=True, done_reason="stop", eval_count=40)[:-1])
    assert content(events) == "ok end"
    assert last(events).output_tokens == 40


def test_a_reason_ends_the_answer_too() -> None:
    assert last(read(line("fine"), line(done_reason="stop", eval_count=40))).output_tokens == 40


def test_done_without_a_reason() -> None:
    assert last(read(line("a"), line(done=True))).reason is None


def test_an_answer_that_only_stops_has_no_end() -> None:
    assert read(line("The first "), line("half")) == [Piece("content", "The first "), Piece("content", "half")]


def test_a_line_cut_in_the_middle_has_no_end() -> None:
    assert read(line("half"), b'{"message":{"content":"x"') == [Piece("content", "half")]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("out of memory", "out of memory"),
        ({"code": 500, "message": "no user turn"}, "no user turn"),
        (json.dumps({"error": {"message": "roles"}}), "roles"),
        ({"error": {"error": "deep"}}, "deep"),
        (["first", "second"], "first"),
        ({"odd": 1}, '{"odd": 1}'),
        (17, "17"),
    ],
)
@pytest.mark.parametrize("newline", [b"\n", b""])
def test_an_error_line_is_an_error_whatever_else_it_holds(error: object, words: str, newline: bytes) -> None:
    text = json.dumps({"StatusCode": 502, "error": error, "message": {"content": "x"}}).encode()
    events = read(line("partial"), text + newline)
    assert isinstance(events[-1], Fault)
    assert events[-1].what == words


def test_nothing_is_read_after_the_end() -> None:
    assert content(read(line("a"), done(), line("b"), b"garbage\n")) == "a"
    assert content(read(line("a"), b'{"error":"x"}\n' + line("b"))) == "a"


def test_thinking_and_answer_are_kept_apart() -> None:
    thoughts = [
        json.dumps({"message": {"content": text, "thinking": thought}}).encode() + b"\n"
        for text, thought in (("", "Let "), (None, "me see."))
    ]
    events = read(*thoughts, line("42"), done())
    assert events[:3] == [Piece("thinking", "Let "), Piece("thinking", "me see."), Piece("content", "42")]


def test_generate_answers_are_read_too() -> None:
    events = read(b'{"thinking":"hm","done":false}\n{"response":"Red","done":false}\n', b'{"response":"","done":true}')
    assert events == [Piece("thinking", "hm"), Piece("content", "Red"), Done()]


def test_tool_calls_come_in_order_and_untouched() -> None:
    calls = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in ("Aville", "Bville")]
    lines = [json.dumps({"message": {"content": "", "tool_calls": [call]}}).encode() + b"\n" for call in calls]
    events = read(*lines, done())
    assert [event.calls for event in events if isinstance(event, ToolCalls)] == [[calls[0]], [calls[1]]]


def test_figures_may_be_missing() -> None:
    assert last(read(line(done=True, done_reason="stop", eval_count=40, eval_duration=10**9))) == Done(
        reason="stop", output_tokens=40, decode_ns=10**9
    )


@pytest.mark.parametrize("value", [-1, -0.5, 2**63, 1e30, 10**400, "40", True, [], {}, float("nan"), float("inf")])
def test_impossible_figures_are_unknown_and_said(value: object) -> None:
    figures = last(read(done(eval_count=value, eval_duration=value, prompt_eval_count=value, total_duration=value)))
    assert (figures.output_tokens, figures.decode_ns, figures.prompt_tokens, figures.total_ns) == (None,) * 4
    assert figures.odd


def test_zero_is_a_count_but_no_duration() -> None:
    figures = last(read(done(eval_count=0, eval_duration=0, prompt_eval_duration=0, load_duration=0)))
    assert (figures.output_tokens, figures.load_ns) == (0, 0)
    assert (figures.decode_ns, figures.prefill_ns) == (None, None)
    assert not figures.odd


def test_the_cached_count_of_newer_servers() -> None:
    figures = last(read(done(prompt_eval_count=6000, prompt_eval_cached_count=5980)))
    assert (figures.prompt_tokens, figures.cached_tokens) == (6000, 5980)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><body>Sign in</body></html>", "HTML page"),
        (b"  <!DOCTYPE html>\n<html>\n", "HTML page"),
        (b"Ollama is running", "did not answer like /api/chat: Ollama is running"),
        (b"[1, 2]\n", "did not answer like"),
        (b'"text"', "did not answer like"),
        (b"{broken\n", "did not answer like"),
        (b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n', "speaks the OpenAI protocol"),
        (b'{"choices":[{"message":{"content":"Hi"}}]}', "speaks the OpenAI protocol"),
        (b": keep-alive\n\n", "speaks the OpenAI protocol"),
    ],
)
def test_other_services_are_no_answer(body: bytes, words: str) -> None:
    events = read(body)
    assert len(events) == 1
    assert isinstance(events[0], Fault)
    assert words in events[0].what
    assert events[0].hint


def test_a_line_of_something_else_in_mid_answer_is_a_fault() -> None:
    events = read(line("a"), b"<html>\n", line("b"))
    assert content(events) == "a"
    assert isinstance(events[-1], Fault)


def test_one_object_over_several_lines() -> None:
    body = json.dumps({"message": {"content": "whole"}, "done": True, "done_reason": "stop"}, indent=2).encode()
    events = read(body[:20], body[20:])
    assert content(events) == "whole"
    assert last(events).reason == "stop"


def test_a_byte_order_mark_is_no_content() -> None:
    assert content(read(b"\xef\xbb\xbf" + line("a"), done())) == "a"


def test_bytes_that_are_no_utf8_do_not_end_the_answer() -> None:
    assert content(read(line("ab").replace(b"ab", b"a\xffb"), done())) == "a\ufffdb"


def test_deep_nesting_is_not_json() -> None:
    events = read(b'{"a":' + b"[" * 100_000 + b"\n")
    assert isinstance(events[0], Fault)


def test_a_line_without_an_end_is_refused_in_time() -> None:
    megabyte = b"x" * (1 << 20)
    read(*[megabyte] * 64)
    with pytest.raises(LabError, match="a line of over 64 MiB"):
        read(*[megabyte] * 65)


KEYS = st.sampled_from(
    ["message", "content", "thinking", "response", "tool_calls", "done", "done_reason", "error", "eval_count",
     "eval_duration", "choices", "delta", "x"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
LINES = st.one_of(
    st.binary(max_size=30),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(KEYS, VALUES, max_size=5).map(lambda value: json.dumps(value).encode()),
    st.text(max_size=8).map(lambda text: line(text)[:-1]),
)
BODIES = st.lists(LINES, max_size=6).map(b"\n".join)


@settings(max_examples=300, deadline=None)
@given(BODIES, st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_cut_anywhere_give_the_same_events(body: bytes, cuts: list[int]) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(body)), len(body)})
    chunks = [body[start:end] for start, end in pairwise(places)]
    assert repr(read(*chunks)) == repr(read(body))


@settings(max_examples=300, deadline=None)
@given(BODIES)
def test_any_bytes_make_a_record(body: bytes) -> None:
    record = Record(OllamaWire(), Label())
    record.sent_ns = 0
    record.feed(1, body)
    record.close_wire(2)
    record.close(3)
    call = record.call(outcome="ok", error=None, messages=ASKED, num_ctx=4096, alone=True, loopback=True)
    for value in (record.deltas.text, record.deltas.thinking, call.done_reason or "", repr(call)):
        value.encode()
    json.dumps(record.tool_calls).encode()
    assert call.flags is None or call.flags
