"""Faults that people met in programs like this one, retold: streams, figures and addresses, over a real socket.

The ids are those of the collection of cases; the inputs are our own.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from asking import MS, Clock, chat, server_at
from played import PlayedServer, Response, answer, done_line, line, refusal

from llmlab.call import Call, Label, has_flag
from llmlab.client import Client
from llmlab.messages import Message

S = 1_000 * MS

pytestmark = pytest.mark.usefixtures("reading")


@dataclass(frozen=True)
class Case:
    """`responses` are played one after the other; `expected` says of each call what must hold.

    Names in `expected` are fields of `Call` or of the outcome (`text`, `thinking`, `tool_calls`); `error` is a list of
    words that the error must have, None where there must be none; `flags` those that must be set, `no_flags` not.
    """

    responses: list[Response]
    expected: list[dict[str, Any]]
    request: dict[str, Any] = field(default_factory=dict)
    label: Label = field(default_factory=Label)


def raw(text: str) -> dict[str, str]:
    """Bytes of a line that JSON's own writer would not make."""
    return {"text": text}


def thinks(thought: str, content: str | None = "") -> dict[str, Any]:
    return {"line": {"message": {"role": "assistant", "content": content, "thinking": thought}, "done": False}}


def whole(reason: str) -> Response:
    """One JSON object without a newline, as a server answers that only loads or unloads."""
    body = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": reason}
    return {"headers": {"content-type": "application/json; charset=utf-8"}, "body": [{"text": json.dumps(body)}]}


CALL = {"function": {"name": "weather", "arguments": {"city": "Aville"}}}
OK: dict[str, Any] = {"outcome": "ok", "error": None}
HTML = {"content-type": "text/html"}
EMOJI = line("naïve 中🙂")["line"]
EMOJI_BYTES = (json.dumps(EMOJI, ensure_ascii=False) + "\n").encode()
CUT = EMOJI_BYTES.index("中".encode()) + 1

CASES = {
    "C01": Case(
        [answer(line("one\u0085two"), line("x\u2028y\u2029z"), done_line())],
        [{**OK, "text": "one\u0085twox\u2028y\u2029z", "pieces": 2}],
    ),
    "C02": Case(
        [answer({"hex": EMOJI_BYTES[:CUT].hex()}, {"hex": EMOJI_BYTES[CUT:].hex()}, done_line())],
        [{**OK, "text": "naïve 中🙂"}],
    ),
    "C04": Case(
        [
            answer(
                raw('{"message":{"content":"A"},"done":false}\r'),
                raw("\n\r\n\n   \n"),
                raw('{"message":{"content":"B"},"done":false}\r\n'),
                done_line(),
            )
        ],
        [{**OK, "text": "AB"}],
    ),
    "C05": Case(
        [answer("ok", raw(json.dumps(done_line("stop", " end")["line"])))],
        [{**OK, "text": "ok end", "decode_tokens_per_s": 40.0}],
    ),
    "C07": Case(
        [answer("The first ", "half")],
        [{"outcome": "incomplete", "text": "The first half", "decode_tokens_per_s": None, "error": ["incomplete"]}],
    ),
    "C08": Case([answer("fine", done_line(done=None))], [{**OK, "text": "fine", "done_reason": "stop"}]),
    "C10": Case(
        [
            refusal(500, {"error": {"code": 500, "message": "template: no user turn", "type": "server_error"}}),
            refusal(500, {"error": json.dumps({"error": {"code": 500, "message": "template: roles"}})}),
        ],
        [
            {"outcome": "error", "http_status": 500, "error": ["answered 500: template: no user turn"]},
            {"outcome": "error", "http_status": 500, "error": ["answered 500: template: roles"]},
        ],
    ),
    "C11": Case(
        [answer("partial", raw('{"StatusCode":502,"Status":"502 Bad Gateway","error":"remote closed"}'))],
        [{"outcome": "error", "text": "partial", "error": ["remote closed"]}],
    ),
    "C13": Case(
        [{"status": 504, "headers": HTML, "body": [raw("<!DOCTYPE html><title>504</title>" + "x" * 7_000)]}],
        [{"outcome": "error", "error": ["504", "a proxy in front", "HTML page"]}],
    ),
    "C14": Case(
        [
            {"status": 200, "headers": HTML, "body": [raw("<html><body>Sign in</body></html>")]},
            {"status": 200, "headers": {"content-type": "text/plain"}, "body": [raw("Ollama is running")]},
        ],
        [{"outcome": "error", "text": "", "error": ["did not answer like", "/api/chat"]}] * 2,
    ),
    "C16": Case(
        [
            refusal(401, {"error": "unauthorized", "signin_url": "https://example.invalid/in?x=1"}),
            refusal(429, {"error": "usage limit reached"}, retry_after="120"),
        ],
        [
            {"outcome": "error", "error": ["https://example.invalid/in?x=1"]},
            {"outcome": "error", "error": ["usage limit reached", "120 s"]},
        ],
    ),
    "C17": Case(
        [refusal(400, {"error": "cannot"})],
        [{"outcome": "error", "http_status": 400, "error": ["without thinking"]}],
        request={"think": True},
    ),
    "C22": Case(
        [answer(thinks("Let "), thinks("me "), thinks("see"), thinks(".", None), "42", done_line())],
        [{**OK, "thinking": "Let me see.", "text": "42", "pieces": 5}],
    ),
    "C23": Case(
        [answer("<th", "ink>plan", "ning</thi", "nk>\n\nDone.", done_line())],
        [{**OK, "thinking": "planning", "text": "Done."}],
    ),
    "C23-literal": Case(
        [answer("Write `<think>` first:\n```\n<thi", "nk>\n```\n", "That is all.", done_line())],
        [{**OK, "thinking": "", "text": "Write `<think>` first:\n```\n<think>\n```\nThat is all."}],
    ),
    "C25": Case([whole("load"), whole("unload")], [{"outcome": "error", "error": ["nothing was generated"]}] * 2),
    "C25-measured": Case([whole("load")], [{"outcome": "error"}], label=Label(purpose="measured")),
    "C25-warmup": Case([whole("load"), whole("unload")], [OK, OK], label=Label(purpose="warmup")),
    "C26": Case(
        [
            answer(
                *({"line": {"message": {"content": "", "tool_calls": [CALL]}, "done": False}} for _ in range(2)),
                done_line(),
            )
        ],
        [{**OK, "tool_calls": [CALL, CALL], "text": ""}],
    ),
    "C28": Case(
        [{"headers": {"content-type": "text/event-stream"}, "body": [raw('data: {"choices":[]}\n\ndata: [DONE]\n\n')]}],
        [{"outcome": "error", "error": ["speaks the OpenAI protocol", "/api/chat"]}],
    ),
    "C29": Case(
        [
            answer(
                raw('{"message":{"content":"ok \\ud83d"}}\n'),
                raw('{"message":{"content":"\\ude00 end"}}\n'),
                done_line(),
            ),
            answer(raw('{"message":{"content":"ok \\ud83d"}}\n'), "end", done_line()),
        ],
        [{**OK, "text": "ok 😀 end"}, {**OK, "text": "ok \ufffdend"}],
    ),
    "C31": Case(
        [answer("a", done_line(prompt_eval_count=None, prompt_eval_duration=12 * MS))],
        [{**OK, "prompt_tokens": None, "prefill_tokens_per_s": None, "decode_tokens_per_s": 40.0}],
        label=Label(cache_state="cold"),
    ),
    "C32": Case(
        [
            answer("a", done_line(prompt_eval_count=6000, prompt_eval_cached_count=5980, prompt_eval_duration=30 * MS)),
            answer("a", done_line(prompt_eval_count=6000, prompt_eval_duration=30 * MS)),
        ],
        [
            {**OK, "cached_tokens": 5980, "prefill_tokens_per_s": pytest.approx(666.7, abs=0.05)},
            {**OK, "cached_tokens": None, "prefill_tokens_per_s": None},
        ],
    ),
    "C34": Case(
        [answer(done_line("stop", "x", eval_count=1, eval_duration=1_000))],
        [{**OK, "text": "x", "decode_tokens_per_s": None, "user_tokens_per_s": None}],
    ),
    "C35": Case(
        [
            answer("a", done_line(eval_duration=0)),
            answer("a", done_line(eval_duration=-1)),
            answer("a", done_line(eval_count=0)),
        ],
        [
            {**OK, "text": "a", "decode_tokens_per_s": None},
            {**OK, "text": "a", "decode_tokens_per_s": None, "flags": ["odd_figures"]},
            {**OK, "text": "a", "decode_tokens_per_s": None},
        ],
    ),
    "C46": Case(
        [
            answer("a", done_line(None)),
            answer("a", done_line("length", eval_count=32)),
            answer("a", done_line("length", prompt_eval_count=4000, eval_count=96)),
        ],
        [{**OK, "done_reason": reason} for reason in (None, "length", "window_full")],
        request={"num_ctx": 4096, "num_predict": 32},
    ),
    "C48": Case(
        [refusal(400, {"error": "prompt exceeds the available context"})],
        [{"outcome": "error", "http_status": 400, "error": ["answered 400", "exceeds"]}],
        request={"num_ctx": 4096},
    ),
    "C124": Case(
        [{"status": 301, "headers": {**HTML, "location": "https://h.example/api/chat"}, "body": []}],
        [{"outcome": "error", "http_status": 301, "error": ["redirects to https://h.example", "OLLAMA_HOST"]}],
    ),
}


def check(call: Call, got: Any, expected: dict[str, Any]) -> None:
    for name, wanted in expected.items():
        if name == "error":
            assert (got.error is None) == (wanted is None)
            assert call.error == (None if wanted is None else str(got.error))
            assert all(words in str(got.error) for words in wanted or ())
        elif name == "flags":
            assert all(has_flag(call, flag) for flag in wanted)
        elif name == "tool_calls":
            assert got.stream.tool_calls == wanted
        else:
            assert getattr(got if name in ("text", "thinking") else call, name) == wanted


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_case(case: Case) -> None:
    async with PlayedServer(case.responses) as server, Client(server_at(server.url)) as client:
        for expected in case.expected:
            got = await chat(client, label=case.label, **case.request)
            check(got.call, got, expected)
        assert len(server.requests) == len(case.responses)


async def paced(*steps: float | Any, label: Label = Label()) -> Call:
    """A call over a socket whose clock the server's script moves: a number is milliseconds that pass.

    Each piece is read before the clock moves on.
    """
    clock, arrived = Clock(), asyncio.Event()

    async def pass_by(ms: float) -> None:
        await arrived.wait()
        arrived.clear()
        clock.later(ms)()

    body = [{"call": lambda ms=step: pass_by(ms)} if isinstance(step, int | float) else step for step in steps]
    async with PlayedServer([answer(*body)]) as server, Client(server_at(server.url), clock=clock) as client:
        arrived.set()
        async with client.chat([Message("user", "hi")], options(), label) as stream:
            async for _ in stream:
                arrived.set()
        return stream.call


def options() -> Any:
    from llmlab.client import ChatOptions

    return ChatOptions(model="demo:1b", num_ctx=4096)


async def test_c20_a_cold_start_is_waited_for() -> None:
    call = await paced(45_000, "hi", done_line(total_duration=46_300 * MS, load_duration=44 * S))
    assert (call.outcome, call.ttft_ns, call.load_ns, call.unexplained_ns) == ("ok", 45 * S, 44 * S, 940 * MS)


async def test_c37_an_empty_first_line_is_no_token() -> None:
    call = await paced(805, {"burst": [line(""), line("a")]}, done_line())
    assert (call.ttft_ns, call.pieces) == (805 * MS, 1)


async def test_c38_first_thought_and_first_word() -> None:
    call = await paced(100, thinks("a"), 900, thinks("b"), 900, "x", done_line(eval_count=80, eval_duration=2 * S))
    assert (call.ttft_ns, call.ttft_answer_ns, call.decode_tokens_per_s) == (100 * MS, 1_900 * MS, 40.0)


async def test_c40_waiting_is_not_prefill() -> None:
    call = await paced(6_200, "a", 975, "b", done_line(total_duration=7_300 * MS), label=Label(cache_state="unknown"))
    assert (call.prefill_ns, call.prefill_source, call.decode_tokens_per_s) == (60 * MS, "server", 40.0)
    assert call.unexplained_ns == 6_120 * MS


async def test_c41_lines_are_no_tokens() -> None:
    steps: list[Any] = [100, "one two three four "]
    for _ in range(3):
        steps += [400, "five six seven eight "]
    call = await paced(*steps, done_line(eval_count=64, eval_duration=1_600 * MS))
    assert (call.pieces, call.output_tokens, call.decode_tokens_per_s) == (4, 64, 40.0)


async def test_c43_every_speed_has_its_own_name() -> None:
    end = done_line(
        prompt_eval_count=30_000,
        prompt_eval_duration=15 * S,
        eval_count=200,
        eval_duration=5 * S,
        total_duration=20_100 * MS,
    )
    call = await paced(15_020, "a", 4_975, "b", end, label=Label(cache_state="cold"))
    assert (call.decode_tokens_per_s, call.prefill_tokens_per_s, call.server_total_ns) == (40.0, 2000.0, 20_100 * MS)


async def test_c44_a_stream_that_a_proxy_held_back() -> None:
    end = done_line(load_duration=20 * MS, prompt_eval_duration=300 * MS, eval_duration=1 * S)
    call = await paced(3_000, {"burst": [line(text) for text in "abcd"] + [end]})
    assert (call.ttft_ns, call.decode_tokens_per_s) == (3 * S, 40.0)
    assert has_flag(call, "buffered")
    call = await paced(320, "a", 975, "b", end)
    assert call.flags is None


async def test_c19_a_stream_that_falls_silent_ends() -> None:
    never = asyncio.Event()
    async with (
        PlayedServer([answer("one ", "two ", {"wait": never})]) as server,
        Client(server_at(server.url), timeout_s=0.02) as client,
    ):
        got = await chat(client)
        check(got.call, got, {"outcome": "timeout", "text": "one two ", "error": ["no data for 0.02 s"]})


async def test_c29_the_next_turn_works_after_half_a_character() -> None:
    script = [answer(raw('{"message":{"content":"ok \\ud83d"}}\n'), done_line()), answer("fine", done_line())]
    async with PlayedServer(script) as server, Client(server_at(server.url)) as client:
        first = await chat(client)
        again = await chat(client, [Message("user", "a"), Message("assistant", first.text), Message("user", "b")])
        assert (again.text, server.requests[1].json["messages"][1]["content"]) == ("fine", "ok \ufffd")


@pytest.mark.parametrize(
    ("given", "sent"),
    [(-1, -1), (0, 0), (30, 30), ("5m", "5m"), ("-1m", "-1m"), ("1h30m", "1h30m"), (None, "left out")],
)
async def test_c128_keep_alive_is_sent_as_it_was_given(given: int | str | None, sent: int | str) -> None:
    async with PlayedServer([answer("a", done_line())]) as server, Client(server_at(server.url)) as client:
        await chat(client, keep_alive=given)
        assert server.requests[0].json.get("keep_alive", "left out") == sent
