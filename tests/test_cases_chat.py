"""Faults that people met in programs like this one, retold: what `llmlab chat` prints, records and exits with.

The ids are those of the collection of cases; the inputs are our own. Each is played over a real socket.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.played import answer, done_line, line, refusal
from tests.playing import Playing

OK, SERVER = 0, 4
HTML = {"content-type": "text/html"}
CALL = {"function": {"name": "weather", "arguments": {"city": "Aville"}}}
EMOJI_BYTES = (json.dumps(line("naïve 中🙂")["line"], ensure_ascii=False) + "\n").encode()
CUT = EMOJI_BYTES.index("中".encode()) + 1


@dataclass(frozen=True)
class Case:
    """`steps` are the lines of one 200 answer, `response` any other; `out` is all of stdout, `err` words on stderr.

    `row` are columns of the call. `not_err` must not be said.
    """

    steps: tuple[Any, ...] = ()
    response: dict[str, Any] | None = None
    args: tuple[str, ...] = ()
    code: int = OK
    out: str = ""
    err: tuple[str, ...] = ()
    not_err: tuple[str, ...] = ()
    row: dict[str, Any] = field(default_factory=dict)


def raw(text: str) -> dict[str, str]:
    return {"text": text}


def thinks(thought: str, content: str | None = "") -> dict[str, Any]:
    return {"line": {"message": {"role": "assistant", "content": content, "thinking": thought}, "done": False}}


def whole(reason: str) -> dict[str, Any]:
    body = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": reason}
    return {"headers": {"content-type": "application/json; charset=utf-8"}, "body": [raw(json.dumps(body))]}


def tools(count: int) -> list[dict[str, Any]]:
    return [{"line": {"message": {"content": "", "tool_calls": [CALL]}, "done": False}} for _ in range(count)]


END = done_line()
SPEED = "40 tok/s"
MARKUP = "use list[int] and x[0], then [/INST] and [/], [red]not red[/red] [link=https://e.invalid]a[/link]"
YAML = "env:\n  :key: value\n  a :bug: b\n"

CASES = {
    "C01": Case((line("one\u0085two"), line("x\u2028y\u2029z"), END), out="one\u0085twox\u2028y\u2029z\n"),
    "C01-burst": Case(({"burst": [line("one\u0085\u2028two"), line("three"), END]},), out="one\u0085\u2028twothree\n"),
    "C02": Case(({"hex": EMOJI_BYTES[:CUT].hex()}, {"hex": EMOJI_BYTES[CUT:].hex()}, END), out="naïve 中🙂\n"),
    "C04": Case(
        (
            raw('{"message":{"content":"A"},"done":false}\r'),
            raw("\n\r\n\n   \n"),
            raw('{"message":{"content":"B"},"done":false}\r\n'),
            END,
        ),
        out="AB\n",
    ),
    "C05": Case(("ok", raw(json.dumps(done_line("stop", " end")["line"]))), out="ok end\n", err=(SPEED,)),
    "C07": Case(
        ("The first ", "half"),
        code=SERVER,
        out="The first half\n",
        err=("incomplete",),
        not_err=("tok/s",),
        row={"outcome": "incomplete", "pieces": 2, "decode_ns": None},
    ),
    "C08": Case(("fine", done_line(done=None)), out="fine\n", err=(SPEED,), row={"done_reason": "stop"}),
    "C10": Case(
        response=refusal(500, {"error": {"code": 500, "message": "template: no user turn", "type": "server_error"}}),
        code=SERVER,
        err=("answered 500: template: no user turn",),
        row={"outcome": "error", "http_status": 500},
    ),
    "C10-json": Case(
        response=refusal(500, {"error": json.dumps({"error": {"code": 500, "message": "template: roles"}})}),
        code=SERVER,
        err=("answered 500: template: roles",),
        not_err=("{",),
    ),
    "C11": Case(
        ("partial", raw('{"StatusCode":502,"Status":"502 Bad Gateway","error":"remote closed"}')),
        code=SERVER,
        out="partial\n",
        err=("remote closed",),
        row={"outcome": "error"},
    ),
    "C13": Case(
        response={"status": 504, "headers": HTML, "body": [raw("<!DOCTYPE html><title>504</title>" + "x" * 7_000)]},
        code=SERVER,
        err=("got 504 from a proxy in front of http://127.0.0.1", "HTML page"),
        not_err=("xxx", "<title>"),
    ),
    "C14": Case(
        response={"status": 200, "headers": HTML, "body": [raw("<html><body>Sign in</body></html>")]},
        code=SERVER,
        err=("did not answer like", "http://127.0.0.1"),
        row={"outcome": "error"},
    ),
    "C14-text": Case(
        response={"status": 200, "headers": {"content-type": "text/plain"}, "body": [raw("Ollama is running")]},
        code=SERVER,
        err=("did not answer like",),
    ),
    "C16": Case(
        response=refusal(401, {"error": "unauthorized", "signin_url": "https://example.invalid/in?x=1"}),
        code=SERVER,
        err=("https://example.invalid/in?x=1",),
    ),
    "C16-limit": Case(
        response=refusal(429, {"error": "usage limit reached"}, retry_after="120"),
        code=SERVER,
        err=("usage limit reached. Try again in 120 s",),
    ),
    "C17": Case(
        response=refusal(400, {"error": "geht nicht"}), args=("--think",), code=SERVER, err=("ask without thinking",)
    ),
    "C22": Case(
        (thinks("Let "), thinks("me "), thinks("see"), thinks(".", None), "42", END),
        out="42\n",
        err=("11 characters",),
        row={"pieces": 5},
    ),
    "C23": Case(("<th", "ink>plan", "ning</thi", "nk>\n\nDone.", END), out="Done.\n", err=("8 characters",)),
    "C25": Case(response=whole("load"), code=SERVER, err=("nothing was generated",), row={"outcome": "error"}),
    "C25-unload": Case(response=whole("unload"), code=SERVER, err=("nothing was generated",)),
    "C26": Case((*tools(2), END), out="", err=("the model asked for 2 tools; chat runs none",)),
    "C26-one": Case((*tools(1), END), out="", err=("the model asked for 1 tool;",)),
    "C28": Case(
        response={"headers": {"content-type": "text/event-stream"}, "body": [raw('data: {"a":1}\n\ndata: [DONE]\n\n')]},
        code=SERVER,
        err=('speaks the OpenAI protocol, not Ollama\'s /api/chat: data: {"a":1}',),
        not_err=("[DONE]",),
    ),
    "C29": Case(
        (raw('{"message":{"content":"ok \\ud83d"}}\n'), raw('{"message":{"content":"\\ude00 end"}}\n'), END),
        out="ok 😀 end\n",
    ),
    "C29-alone": Case((raw('{"message":{"content":"ok \\ud83d"}}\n'), "end", END), out="ok \ufffdend\n"),
    "C31": Case(
        ("a", done_line(prompt_eval_count=None)),
        out="a\n",
        err=("– prompt tokens", SPEED),
        row={"prompt_tokens": None, "outcome": "ok"},
    ),
    "C32": Case(
        ("a", done_line(prompt_eval_count=600, prompt_eval_cached_count=580, prompt_eval_duration=30_000_000)),
        out="a\n",
        err=("600 prompt tokens (580 cached)",),
        row={"cached_tokens": 580},
    ),
    "C34": Case(
        (done_line("stop", "x", eval_count=1, eval_duration=1_000),),
        out="x\n",
        err=("too short for a speed",),
        not_err=("tok/s",),
    ),
    "C34-empty": Case((done_line(eval_count=1, eval_duration=6_000),), err=("no answer in 1 token",)),
    "C35-zero": Case(("a", done_line(eval_duration=0)), out="a\n", err=("to first token · –",), not_err=("tok/s",)),
    "C35-negative": Case(
        ("a", done_line(eval_duration=-5)),
        out="a\n",
        not_err=("tok/s", "-"),
        row={"decode_ns": None, "flags": "odd_figures"},
    ),
    "C35-none": Case(
        ("a", done_line(eval_count=0, eval_duration=0)), out="a\n", not_err=("tok/s",), row={"flags": "odd_figures"}
    ),
    "C46": Case(("a", done_line(None)), out="a\n", not_err=("stopped",), row={"done_reason": None}),
    "C46-limit": Case(
        ("a", done_line("length", eval_count=32)), args=("-n", "32"), out="a\n", err=("stopped at -n 32",)
    ),
    "C46-server": Case(("a", done_line("length")), out="a\n", err=("the server's own limit",), not_err=("-n ",)),
    "C46-other": Case(("a", done_line("content_filter")), out="a\n", err=("stopped: content_filter",)),
    "C46-window": Case(
        ("a", done_line("length", prompt_eval_count=2050, eval_count=2046)),
        out="a\n",
        err=("the window is full", "--num-ctx"),
        not_err=("-n ",),
        row={"done_reason": "window_full"},
    ),
    "C108": Case((MARKUP[:30], MARKUP[30:60], MARKUP[60:], END), out=MARKUP + "\n"),
    "C109": Case((YAML, END), out=YAML),
    "C124": Case(
        response={"status": 301, "headers": {**HTML, "location": "https://h.example/api/chat"}, "body": []},
        code=SERVER,
        err=("redirects to https://h.example. Set OLLAMA_HOST or --host to https://h.example",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(case: Case, lab, rows) -> None:
    with Playing(case.response or answer(*case.steps)) as server:
        result = lab("chat", "hi", "--host", server.url, "--keep-text", *case.args)
        assert len(server.asked) == 1, "never asked again"
        assert ("think" in server.asked[0]) == ("--think" in case.args)
    assert (result.exit_code, result.stdout) == (case.code, case.out)
    assert all(words in result.stderr for words in case.err), result.stderr
    said = result.stderr.replace(server.url, "")
    assert not [words for words in case.not_err if words in said], result.stderr
    if case.code:
        assert result.stderr.splitlines()[-1].startswith("Error: ")
        assert result.stderr.count("Error") == 1
    (row,) = rows("select * from calls")
    assert {name: row[name] for name in case.row} == case.row
    assert all(len(text) <= 400 for text in result.stderr.splitlines())
    if case.code == OK and case.steps:
        (text,) = rows("select answer from texts")
        assert text["answer"] == case.out.removesuffix("\n") or text["answer"] == case.out


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00"])
def test_c29_a_lone_half_is_stored_and_sent_back_with_the_next_turn(lab, rows, half) -> None:
    script = [answer(raw(f'{{"message":{{"content":"ok {half}"}}}}\n'), END), answer("fine", END)]
    with Playing(*script) as server:
        result = lab("chat", "--lines", "--host", server.url, "--keep-text", stdin="a\nb\n")
        assert [m["content"] for m in server.asked[1]["messages"]] == ["a", "ok \ufffd", "b"]
    assert (result.exit_code, result.stdout) == (OK, "ok \ufffd\nfine\n")
    assert rows("select answer from texts order by rowid")[0]["answer"] == "ok \ufffd"


def test_c22_c23_c62_past_thinking_is_neither_sent_nor_counted(lab, rows) -> None:
    long = "hmm " * 3_400
    script = [answer(thinks(long), "yes", END), answer(f"<think>{long}</think>no", END), answer("ok", END)]
    with Playing(*script) as server:
        result = lab("chat", "--lines", "--host", server.url, stdin="q1\nq2\nq3\n")
        assert [m["content"] for m in server.asked[2]["messages"]] == ["q1", "yes", "q2", "no", "q3"]
        assert "hmm" not in json.dumps(server.asked[2])
    assert result.exit_code == OK and "dropped" not in result.stderr
    assert rows("select max(prompt_tokens_estimate) most from calls")[0]["most"] < 60


def test_c44_a_stream_that_a_proxy_held_back_is_said(lab, rows) -> None:
    """All lines in one write, after the time it took to decode them; the figures of the server are small here."""
    end = done_line(load_duration=0, prompt_eval_duration=1_000_000, eval_duration=120_000_000)
    held = answer({"sleep_ms": 150}, {"burst": [line("a"), line("b"), end]})
    with Playing(held) as server:
        result = lab("chat", "hi", "--host", server.url)
    assert "the stream looks buffered by a proxy" in result.stderr
    assert rows("select flags from calls") == [{"flags": "buffered"}]


def test_c19_silence_in_mid_answer_ends_with_how_long_it_lasted(lab, rows) -> None:
    with Playing(answer("one ", "two ", {"sleep_ms": 60_000})) as server:
        result = lab("chat", "hi", "--host", server.url, "--timeout", "0.1")
    assert (result.exit_code, result.stdout) == (SERVER, "one two \n")
    assert "no data for 0.1 s" in result.stderr and "--timeout" in result.stderr
    assert rows("select outcome, pieces from calls") == [{"outcome": "timeout", "pieces": 2}]


def test_c20_a_cold_start_is_waited_for(lab, rows) -> None:
    """No headers before the first token; the load is kept apart."""
    script = answer({"sleep_ms": 300}, "hi", done_line(load_duration=250_000_000))
    with Playing(script) as server:
        assert lab("chat", "hi", "--host", server.url).exit_code == OK
    (row,) = rows("select ttft_ns, load_ns, outcome from calls")
    assert row["outcome"] == "ok" and row["ttft_ns"] >= 300_000_000 and row["load_ns"] == 250_000_000
