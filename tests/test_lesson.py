"""The lesson as told, on the real model of the embedded engine, through the command line."""

import json

import pytest
from engine_fixture import engine

__all__ = ["engine"]
pytestmark = pytest.mark.engine

TELL = "Remember this: the code word is BLUEBIRD. I will ask for it later."
ASK = "What was the code word I told you at the start of our conversation?"
TOPICS = ("rivers that change the land", "bread and how it is baked", "clocks before electricity", "birds at sea")
TALK = [f"Write a few sentences about {topic}, please, with one example from your own knowledge." for topic in TOPICS]


def chat(lab, engine, *turns, options=()):
    flags = ["--lines", "--host", engine.url, "-o", "temperature", "0", *options]
    return lab("chat", *flags, stdin="\n".join(turns) + "\n")


def test_a_word_is_remembered_and_every_turn_ends_with_three_numbers(lab, engine, rows):
    turns = ("Remember: the code word is BLUEBIRD.", "What was the code word I told you?")
    result = chat(lab, engine, *turns, options=["--num-ctx", "1024", "-n", "48"])
    assert result.exit_code == 0
    assert "BLUEBIRD" in result.stdout.splitlines()[-1]
    assert result.stderr.count("to first token") == 2
    first, second = rows("select prompt_tokens, output_tokens, ttft_ns, num_ctx, cached_tokens from calls order by seq")
    assert first["num_ctx"] == second["num_ctx"] == 1024
    assert first["prompt_tokens"] == 21
    assert second["cached_tokens"] >= 21
    assert min(first["output_tokens"], second["output_tokens"], first["ttft_ns"]) > 0


def test_past_the_window_the_cut_is_proved_without_a_budget_and_the_pin_holds_with_one(lab, engine, rows):
    size = ["--num-ctx", "256", "-n", "40"]
    result = chat(lab, engine, TELL, *TALK, ASK, options=[*size, "--no-budget"])
    assert "BLUEBIRD" not in result.stdout.splitlines()[-1]
    assert "the oldest part of this conversation is gone" in result.stderr
    assert rows("select cut from calls where purpose = 'answer' order by seq desc limit 1") == [{"cut": "proved"}]

    result = chat(lab, engine, f"/pin {TELL}", *TALK, ASK, options=[*size, "--tag", "pinned"])
    assert "BLUEBIRD" in "".join(result.stdout.splitlines()[-3:])
    assert "dropped " in result.stderr
    pinned = rows(
        "select cut, prompt_tokens, cached_tokens, messages_dropped from calls join runs on runs.id = run_id "
        "where tag = 'pinned' and calls.outcome = 'ok' order by seq"
    )
    assert {call["cut"] for call in pinned} == {"no"}
    assert max(call["messages_dropped"] for call in pinned) > 0
    assert sum(call["cached_tokens"] > 0.3 * call["prompt_tokens"] for call in pinned[1:]) >= len(pinned[1:]) / 2


def test_json_of_one_question(lab, engine):
    result = lab("chat", "Name three primary colours.", "--host", engine.url, "--num-ctx", "1024", "-n", "8", "--json")
    turn = json.loads(result.stdout)
    assert turn["answer"]
    assert turn["call"]["prompt_tokens"] == 14
    assert turn["call"]["timing_source"] == "socket"
