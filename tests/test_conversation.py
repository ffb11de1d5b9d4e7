"""Conversations at the edge of the window, through the command line against a fake server that cuts as Ollama does."""

import json

import pytest

from llmlab.fake import FakeServer, Figures

QUICK = {"decode_gap_ns": 100_000, "prefill_tokens_per_s": 1_000_000.0}
TELL = "Remember this: the code word is BLUEBIRD. I will ask for it later."
ASK = "What was the code word I told you?"
TALK = "Please say something about the harbour, the mill above the weir and the grain on the sledges. " * 3


def lines(*turns: str) -> str:
    return "\n".join(" ".join(turn.split()) for turn in turns) + "\n"


def talk(lab, fake, *turns, options=()):
    return lab("chat", "--lines", "--host", fake.url, "--num-ctx", "512", "-n", "24", *options, stdin=lines(*turns))


@pytest.fixture
def server():
    with FakeServer(Figures(**QUICK)) as fake:
        yield fake


def test_without_a_budget_the_cut_is_said_and_proved(lab, server, rows):
    result = talk(lab, server, TELL, *[TALK] * 7, ASK, options=["--no-budget"])
    assert result.exit_code == 0
    assert "BLUEBIRD" not in result.stdout.splitlines()[-1]
    assert "the oldest part of this conversation is gone" in result.stderr
    cuts = rows("select cut, cut_evidence, prompt_tokens from calls where purpose = 'answer' order by seq")
    assert cuts[0]["cut"] == "no"
    assert cuts[-1]["cut"] == "proved"
    assert "truncate: false" in cuts[-1]["cut_evidence"] or "fell from" in cuts[-1]["cut_evidence"]
    assert {row["outcome"] for row in rows("select outcome from calls where purpose = 'probe'")} <= {"error"}
    assert all("truncate" not in s.body for s in server.served if s.body["options"].get("num_predict") != 1)


def test_with_the_budget_nothing_is_cut_and_what_is_dropped_is_said(lab, server, rows):
    result = talk(lab, server, TELL, *[TALK] * 7, ASK)
    assert "BLUEBIRD" not in result.stdout.splitlines()[-1]
    assert "dropped " in result.stderr
    assert {row["cut"] for row in rows("select cut from calls")} == {"no"}
    assert rows("select max(messages_dropped) as most from calls")[0]["most"] > 0
    assert all(s.status == 200 and s.body["truncate"] is False for s in server.served)


def test_a_pinned_word_survives(lab, server, rows):
    result = talk(lab, server, f"/pin {TELL}", *[TALK] * 7, ASK)
    assert "BLUEBIRD" in result.stdout.splitlines()[-1]
    last = rows("select messages_pinned, messages_dropped, cut from calls order by seq desc limit 1")[0]
    assert last["messages_pinned"] == 2
    assert last["messages_dropped"] > 0
    assert last["cut"] == "no"


def test_most_turns_stay_warm_under_the_budget(lab, rows):
    with FakeServer(Figures(**QUICK, reports_cached=True)) as fake:
        talk(lab, fake, *[f"{n}. {TALK}" for n in range(16)])
    calls = rows("select prompt_tokens, cached_tokens from calls order by seq")[1:]
    warm = [c for c in calls if c["cached_tokens"] > 0.6 * (c["prompt_tokens"] - 90)]
    assert len(warm) > len(calls) / 2


@pytest.mark.parametrize("counts", [True, False])
def test_a_refusal_is_learned_from_and_asked_again_once(lab, rows, counts):
    # Blanks, of which a model takes many as one token and this server four: prose has taught a ratio too low for them.
    with FakeServer(Figures(**QUICK, refusal_counts=counts)) as fake:
        turns = lines(TALK, TALK) + f"mill {' ' * 1900} weir\n"
        options = ("--host", fake.url, "--num-ctx", "512", "-n", "24")
        result = lab("chat", "--lines", *options, stdin=turns)
    assert result.exit_code == 0
    refused = rows("select count(*) as n from calls where outcome = 'error' and http_status = 400")[0]["n"]
    assert refused >= 1
    assert rows("select count(*) as n from calls where outcome = 'ok'")[0]["n"] == 3
    assert "Error" not in result.stderr


def test_what_can_never_fit_is_said_before_anything_is_sent(lab, server, rows):
    result = talk(lab, server, f"/pin {TALK * 12}")
    assert result.exit_code == 1
    assert "do not fit into the 384" in result.stderr
    assert "Nothing was sent" in result.stderr
    assert server.served == []
    assert rows("select * from calls") == []


def test_refuse_stops_with_the_numbers(lab, server):
    result = talk(lab, server, *[TALK] * 9, options=["--on-overflow", "refuse"])
    assert result.exit_code == 1
    assert "Nothing was sent" in result.stderr
    assert "--on-overflow drop" in result.stderr


def test_summary_keeps_one_pinned_message_for_what_is_dropped(lab, server, rows):
    result = talk(lab, server, *[TALK] * 9, options=["--on-overflow", "summary"])
    assert result.exit_code == 0
    assert "became one pinned summary" in result.stderr
    summaries = rows("select outcome, cut from calls where purpose = 'summary'")
    assert summaries and {row["outcome"] for row in summaries} == {"ok"}
    last = json.dumps(server.served[-1].body["messages"])
    assert last.count("Summary of the earlier part of our conversation") == 1
    assert rows("select messages_pinned from calls order by rowid desc limit 1")[0]["messages_pinned"] >= 1


def test_a_server_that_ignores_truncate_leaves_the_cut_suspected(lab, rows):
    with FakeServer(Figures(**QUICK, honours_truncate=False, chars_per_token=2)) as fake:
        talk(lab, fake, TALK * 5)
    assert rows("select cut from calls order by seq desc limit 1") == [{"cut": "suspected"}]


def test_a_smaller_window_than_asked_is_said_and_kept_to(lab, rows):
    with FakeServer(Figures(**QUICK, window=256)) as fake:
        result = talk(lab, fake, *[TALK] * 4)
    assert "loaded a window of 256 tokens, not the 512 asked" in result.stderr
    sent = rows("select num_ctx, num_ctx_loaded, prompt_tokens from calls where outcome = 'ok'")
    assert {row["num_ctx_loaded"] for row in sent} == {256}
    assert max(row["prompt_tokens"] for row in sent) <= 256


def test_an_openai_server_is_sent_no_num_ctx(lab, rows):
    with FakeServer(Figures(**QUICK, openai_only=True)) as fake:
        assert lab("chat", "hi", "--host", fake.url, "-n", "8").exit_code == 0
    assert rows("select distinct num_ctx from calls") == [{"num_ctx": None}]
    assert all("options" not in s.body and "truncate" not in s.body for s in fake.served)


def test_a_failed_turn_is_not_sent_again_with_the_next(lab, rows):
    with FakeServer(Figures(**QUICK, faults={0: "refuse"})) as fake:
        assert lab("chat", "bad", "--host", fake.url).exit_code == 4
        assert lab("chat", "good", "--host", fake.url, "-n", "8").exit_code == 0
    assert [row["outcome"] for row in rows("select outcome from calls order by rowid")] == ["error", "ok"]
