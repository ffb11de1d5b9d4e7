"""Faults of windows and budgets that people met, retold: what is sent, what is refused, and what is said.

Through the command line, and through the proxy that fits the conversations of other clients. The ids are those of the
collection of cases.
"""

import json
from typing import Any

import pytest

from llmlab.tokens import estimate_tokens
from tests.played import answer, done_line, refusal
from tests.playing import Playing
from tests.serving import MODEL, bench, sent
from tests.test_budget import text

FINE = answer("sure", done_line())
S, U, A = "system", "user", "assistant"


def talk(*parts: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in parts]


@pytest.mark.parametrize("read", [2050, 4096], ids=["half", "window"])
def test_c47_a_prompt_that_the_server_cut_is_said_with_both_counts(lab, rows, read) -> None:
    cut = answer("sure", done_line(prompt_eval_count=read))
    with Playing(cut, refusal(400, {"error": "zu lang"})) as server:
        result = lab("chat", text(12_000), "-s", "Answer in French.", "--no-budget", "--host", server.url)
        assert server.asked[0]["options"]["num_ctx"] == 4096 and "truncate" not in server.asked[0]
        assert server.asked[1]["truncate"] is False
    assert (result.exit_code, result.stdout) == (0, "sure\n")
    assert f"the model read {read:,} of about 1" in result.stderr and "is gone" in result.stderr
    assert rows("select cut from calls where purpose = 'answer'") == [{"cut": "proved"}]


def test_c47_the_budget_stops_it_before_it_is_sent(lab) -> None:
    with Playing(FINE) as server:
        result = lab("chat", text(12_000), "--host", server.url)
        assert server.asked == []
    assert result.exit_code == 1
    assert "3,584" in result.stderr and "Nothing was sent" in result.stderr


@pytest.mark.parametrize("options", [(), ("--no-budget",)])
def test_c48_a_refused_length_names_the_numbers_and_what_to_do(lab, rows, options) -> None:
    """Whatever the words: they are the server's, and change."""
    no = {**refusal(400, {"error": "zu lang"}), "always": True}
    with Playing(no) as server:
        result = lab("chat", text(3400), "--num-ctx", "4096", *options, "--host", server.url)
    assert result.exit_code == 4 and result.stderr.count("\n") == 1
    assert "answered 400: zu lang" in result.stderr
    assert "The prompt is about 3," in result.stderr and "the window 4,096" in result.stderr
    assert "--num-ctx" in result.stderr and ("--no-budget" in result.stderr) == bool(options)
    assert {row["outcome"] for row in rows("select outcome from calls")} == {"error"}


def test_c48_another_400_is_not_taken_for_one_of_length(lab) -> None:
    with Playing(refusal(400, {"error": "bad option"})) as server:
        result = lab("chat", "hi", "--host", server.url)
        assert len(server.asked) == 1
    assert "answered 400: bad option" in result.stderr and "--num-ctx" not in result.stderr


@pytest.mark.parametrize("given", [(), ("--num-ctx", "2048")])
def test_c50_the_window_is_always_sent_and_is_what_the_budget_counts_with(lab, given) -> None:
    with Playing({**FINE, "always": True}) as server:  # its models may have windows of 8,192
        assert lab("chat", "hi", *given, "--host", server.url).exit_code == 0
        window = int(given[1]) if given else 4096
        assert server.asked[0]["options"]["num_ctx"] == window
        assert lab("chat", text(window), *given, "--host", server.url).exit_code == 1
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("script", "characters"),
    [("你好世界" * 25, 100), ("今日は良い天気ですね" * 10, 100), ("안녕하세요세계" * 14, 98)],
    ids=["zh", "ja", "ko"],
)
def test_c51_every_character_without_spaces_counts(lab, rows, script, characters) -> None:
    with Playing(FINE) as server:
        assert lab("chat", script, "--host", server.url).exit_code == 0
    (call,) = rows("select prompt_chars, prompt_tokens_estimate from calls")
    assert call["prompt_chars"] == characters
    assert call["prompt_tokens_estimate"] >= 0.8 * characters


def test_c54_the_newest_question_is_never_dropped(lab) -> None:
    with Playing(FINE, FINE) as server:
        question = text(900) + " What is the total?"
        result = lab("chat", "--lines", "-s", text(3000), "--host", server.url, stdin=f"old question\n{question}\n")
        assert len(server.asked) == 1
    assert result.exit_code == 1
    assert "system 3,0" in result.stderr and "3,584" in result.stderr and "Nothing was sent" in result.stderr


@pytest.mark.parametrize("asked", ["4096", "32768"])
def test_c56_an_answer_as_long_as_the_window_leaves_the_pin_alone(lab, asked) -> None:
    with Playing(FINE, FINE) as server:
        turns = f"/pin {text(1500)}\nSummarise.\n"
        result = lab("chat", "--lines", "-s", "rules", "-n", asked, "--host", server.url, stdin=turns)
        body = server.asked[1]
        assert [m["role"] for m in body["messages"]] == [S, U, A, U]
        assert 0 < body["options"]["num_predict"] < 4096
    assert result.exit_code == 0
    assert result.stderr.count("is more than half of the window of 4,096: 2,048 are planned for it") == 1


def test_c57_reserves_larger_than_the_window_are_an_error_and_not_no_limit(lab) -> None:
    with Playing(FINE) as server:
        result = lab("chat", "hi", "--num-ctx", "1024", "-n", "512", "--reserve", "600", "--host", server.url)
        assert server.asked == []
    assert result.exit_code == 1
    assert "1,024" in result.stderr and "1,112" in result.stderr


CALL = {"role": A, "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
FITTED = {
    "C53": (
        {"num_ctx": 2048, "num_predict": 256},
        talk(*[(U, "ok"), (A, "ok")] * 300, (U, "last")),
        None,
    ),
    "C54": (
        {"num_ctx": 4096, "num_predict": 512},
        talk((S, text(3000)), (U, "old question"), (A, "old answer"), (U, text(900))),
        "refused",
    ),
    "C57": (
        {"num_ctx": 1024, "num_predict": 2000},
        talk((S, text(100)), (U, "a"), (A, text(4000)), (U, "b")),
        [S, "b"],
    ),
    "C59": (
        {"num_ctx": 200, "num_predict": 50},
        [*talk((S, "s"), (U, text(100))), CALL, *talk(("tool", text(40)), (A, "fine"), (U, "next"))],
        ["s", "next"],
    ),
    "C60": (
        {"num_ctx": 1000, "num_predict": 200},
        talk((U, "u1"), (A, "a1"), (U, "u2"), (A, text(900)), (U, "u3"), (A, "a3"), (U, "u4")),
        ["u3", "a3", "u4"],
    ),
    "C62": (
        {"num_ctx": 4096, "num_predict": 512},
        [{"role": U, "content": "q1"}, {"role": A, "content": "yes", "thinking": text(3400)}, *talk((U, "q2"))],
        ["q1", "yes", "q2"],
    ),
}


@pytest.mark.parametrize(("options", "messages", "kept"), FITTED.values(), ids=FITTED)
async def test_what_the_proxy_sends_for_a_client_that_knows_nothing_of_budgets(options, messages, kept) -> None:
    async with bench(FINE, budget=True) as (upstream, _, client):
        body = {"model": MODEL, "messages": messages, "options": options}
        response = await client.post("/api/chat", json=body)
        if kept == "refused":
            assert response.status_code == 413 and sent(upstream) == []
            assert "tokens" in response.json()["error"]
            return
        assert response.status_code == 200
        got = sent(upstream)[-1].json
        contents = [m["content"] for m in got["messages"]]
        if kept is None:
            assert contents[-1] == "last" and got["messages"][0]["role"] == U
            assert len(contents) < len(messages)
            assert estimate_tokens("ok") * len(contents) + 4 * len(contents) < 2048 - 256
        else:
            assert [S if c == messages[0]["content"] and len(c) > 20 else c for c in contents] == kept
        assert int(response.headers["x-llmlab-dropped"]) == len(messages) - len(contents)
        assert 1 <= got["options"]["num_predict"] <= options["num_predict"]


async def test_c62_thinking_is_the_clients_own_and_passes_but_is_not_counted() -> None:
    """The proxy keeps what it does not drop byte for byte, past thinking too; only the count leaves it out."""
    messages = [{"role": U, "content": "q1"}, {"role": A, "content": "yes", "thinking": text(3400)}, *talk((U, "q2"))]
    async with bench(FINE, budget=True) as (upstream, service, client):
        await client.post("/api/chat", json={"model": MODEL, "messages": messages, "options": {"num_ctx": 1024}})
        await service.ledger.settle()
        assert sent(upstream)[-1].json["messages"] == messages


async def test_c63_most_turns_keep_the_start_of_what_is_sent() -> None:
    history: list[dict[str, Any]] = []
    starts, notes = [], 0
    async with bench({**FINE, "always": True}, budget=True) as (upstream, _, client):
        for turn in range(24):
            history.append({"role": U, "content": f"{turn} {text(90)}"})
            body = {"model": MODEL, "messages": history, "options": {"num_ctx": 2048, "num_predict": 64}}
            response = await client.post("/api/chat", json=body)
            notes += response.headers["x-llmlab-dropped"] != "0"
            starts.append(sent(upstream)[-1].json["messages"][0]["content"][:3])
            history.append({"role": A, "content": text(90)})
    assert notes >= 8
    assert 2 <= len(set(starts)) <= 5


def test_c63_one_notice_with_the_numbers_where_the_cut_moves(lab) -> None:
    with Playing({**answer(text(60), done_line(prompt_eval_count=None)), "always": True}) as server:
        turns = "".join(f"{turn} {text(60)}\n" for turn in range(16))
        result = lab("chat", "--lines", "--num-ctx", "1024", "--host", server.url, stdin=turns)
        contents = [body["messages"][0]["content"] for body in server.asked]
    notices = [line for line in result.stderr.splitlines() if line.startswith("dropped ")]
    assert result.exit_code == 0
    assert len(notices) == len(set(contents)) - 1 >= 1
    assert all("→" in line and "of 768 tokens" in line for line in notices)
    assert json.dumps(contents).count("14 ") == 0
