"""The fake server tells the truth: its counts, its cuts, its times."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from llmlab.fake import FakeServer, Figures, Replay, replay_of


def ask(fake: FakeServer, text: str = "Hello", num_predict: int = 4, **more: Any) -> list[dict[str, Any]]:
    options = {"num_predict": num_predict, **more.pop("options", {})}
    body = {"model": fake.model, "messages": [{"role": "user", "content": text}], "options": options} | more
    answer = httpx.post(f"{fake.url}/api/chat", json=body, trust_env=False)
    return [json.loads(line) for line in answer.content.split(b"\n") if line]


async def ask_together(fake: FakeServer, users: int) -> None:
    """Several clients whose requests are on their way before the first answer has ended."""
    body = {"model": fake.model, "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 8}}
    async with httpx.AsyncClient(trust_env=False) as client:
        await asyncio.gather(*(client.post(f"{fake.url}/api/chat", json=body) for _ in range(users)))


def test_figures_of_the_done_line_are_the_true_times() -> None:
    with FakeServer(Figures(prefill_tokens_per_s=2000, decode_gap_ns=3_000_000, load_ns=30_000_000)) as fake:
        done = ask(fake, "x" * 400, num_predict=6)[-1]
        (served,) = fake.served
    assert done["prompt_eval_count"] == 103 and done["eval_count"] == 6
    assert done["done_reason"] == "length"
    assert done["load_duration"] == served.load_ns >= 30_000_000
    assert done["prompt_eval_duration"] == served.prefill_ns >= 103 / 2000 * 1e9
    assert done["eval_duration"] == served.decode_ns >= 5 * 3_000_000
    assert served.ttft_ns == served.first_ns - served.arrived_ns >= served.load_ns + served.prefill_ns


def test_a_stop_counts_the_end_token() -> None:
    with FakeServer(Figures(stop_after=3)) as fake:
        *pieces, done = ask(fake, num_predict=10)
    assert [bool(p["message"]["content"]) for p in pieces] == [True] * 3
    assert (done["done_reason"], done["eval_count"]) == ("stop", 4)


@pytest.mark.parametrize(("reuse", "cached"), [(8, 102), (0, 0)])
def test_a_repeated_prompt_is_cached_where_reuse_is_on(reuse: int, cached: int) -> None:
    with FakeServer(Figures(reuse_prompts=reuse, reports_cached=True)) as fake:
        first, again = (ask(fake, "y" * 400)[-1] for _ in range(2))
    assert first["prompt_eval_cached_count"] == 0
    assert again["prompt_eval_cached_count"] == cached
    assert again["prompt_eval_count"] == 103


def talk(turns: int, word: str = "walnut") -> list[dict[str, str]]:
    pair = [("user", f"Remember this: the code word is {word}. I will ask for it later."), ("assistant", "Noted.")]
    filler = [("user", "z" * 100), ("assistant", "z" * 100)] * turns
    last = [("user", "What was the code word I told you at the start of our conversation?")]
    return [{"role": role, "content": text} for role, text in [*pair, *filler, *last]]


def said(lines: list[dict[str, Any]]) -> str:
    return "".join(line["message"]["content"] for line in lines)


def test_overflow_is_silent_and_loses_the_word() -> None:
    with FakeServer() as fake:
        fits = ask(fake, messages=talk(2), num_predict=20, options={"num_ctx": 512})
        lost = ask(fake, messages=talk(12), num_predict=20, options={"num_ctx": 512})
    assert "walnut" in said(fits) and "walnut" not in said(lost)
    assert 400 < lost[-1]["prompt_eval_count"] < 512


def test_a_single_long_message_is_cut_to_half_the_window() -> None:
    with FakeServer() as fake:
        done = ask(fake, "w" * 5300, options={"num_ctx": 512})[-1]
    assert done["prompt_eval_count"] == 258


def test_truncate_false_is_refused_with_counts() -> None:
    with FakeServer() as fake:
        (line,) = ask(fake, messages=talk(12), truncate=False, options={"num_ctx": 512})
        status = fake.served[0].status
    detail = json.loads(line["error"])["error"]
    assert status == 400
    assert (detail["n_prompt_tokens"], detail["n_ctx"]) == (690, 512)


def test_another_num_ctx_loads_again() -> None:
    with FakeServer(Figures(load_ns=20_000_000)) as fake:
        loads = [ask(fake, options={"num_ctx": n})[-1]["load_duration"] for n in (512, 512, 1024)]
        loaded = httpx.get(f"{fake.url}/api/ps", trust_env=False).json()["models"]
    assert [load > 20_000_000 for load in loads] == [True, False, True]
    assert [row["context_length"] for row in loaded] == [1024]


@pytest.mark.parametrize("slots", [1, 2, 4])
async def test_slots_answer_in_order_of_arrival(slots: int) -> None:
    with FakeServer(Figures(slots=slots, decode_gap_ns=20_000_000)) as fake:
        await ask_together(fake, 4)
        served = fake.served
    spans = [(s.first_ns, s.last_ns) for s in served]
    most = max(sum(a <= start < b for a, b in spans) for start, _ in spans)
    assert most == slots
    assert [s.first_ns for s in served] == sorted(s.first_ns for s in served)


async def test_a_full_queue_is_busy() -> None:
    with FakeServer(Figures(queue_bound=0, decode_gap_ns=50_000_000)) as fake:
        await ask_together(fake, 3)
        statuses = sorted(s.status for s in fake.served)
    assert statuses == [200, 503, 503]


def test_faults_by_number() -> None:
    with FakeServer(Figures(faults={0: "refuse", 1: "error_line", 2: "no_done", 3: "die"})) as fake:
        (refused,) = ask(fake)
        broken, endless = ask(fake), ask(fake)
        with pytest.raises(httpx.RemoteProtocolError):
            ask(fake)
        assert ask(fake)[-1]["done"]
    assert "error" in refused and "error" in broken[-1]
    assert not any(line["done"] for line in endless)


def test_keep_alive_0_unloads() -> None:
    with FakeServer(Figures(load_ns=1)) as fake:
        ask(fake, keep_alive=0)
        assert httpx.get(f"{fake.url}/api/ps", trust_env=False).json() == {"models": []}


def test_thinking_comes_first_and_can_be_turned_off() -> None:
    with FakeServer(Figures(thinking_tokens=2)) as fake:
        lines = ask(fake)
        quiet = ask(fake, think=False)
    assert [("thinking" in line["message"]) for line in lines] == [True, True, False, False, False]
    assert not any("thinking" in line["message"] for line in quiet)


def test_a_client_that_leaves_frees_its_slot() -> None:
    with FakeServer(Figures(fault="endless")) as fake:
        body = json.dumps({"model": fake.model, "messages": [{"role": "user", "content": "x"}]}).encode()
        with socket.create_connection(("127.0.0.1", int(fake.url.rpartition(":")[2]))) as client:
            client.sendall(b"POST /api/chat HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
        with httpx.stream("POST", f"{fake.url}/api/chat", content=body, trust_env=False) as answer:
            assert next(answer.iter_raw())
        assert fake.served[0].gone


def test_openai_wire_ends_with_usage_and_timings() -> None:
    with FakeServer(Figures(openai_only=True)) as fake:
        body = {"model": fake.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = httpx.post(f"{fake.url}/v1/chat/completions", json=body, trust_env=False)
        assert httpx.get(f"{fake.url}/api/version", trust_env=False).status_code == 404
    events = [line[6:] for line in answer.text.split("\n\n") if line]
    usage = json.loads(events[-2])
    assert events[-1] == "[DONE]"
    assert usage["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert usage["timings"]["prompt_n"] == 4


def test_a_capture_is_replayed_at_its_recorded_times() -> None:
    lines = [
        {"created_at": "2026-11-30T07:18:09.13Z", "message": {"role": "assistant", "content": "a"}, "done": False},
        {"created_at": "2026-11-30T07:18:09.15Z", "message": {"role": "assistant", "content": "b"}, "done": False},
        {"created_at": "2026-11-30T07:18:09.151Z", "done": True, "total_duration": 61_000_000},
    ]
    body = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    replay = replay_of({"status": "200 OK", "headers": {"Content-Type": "application/x-ndjson"}, "body": body})
    assert [at for at, _ in replay.chunks] == [40_000_000, 60_000_000, 61_000_000]
    with FakeServer(replays=[replay]) as fake:
        assert said(ask(fake)[:2]) == "ab"
        assert fake.served[0].ttft_ns >= 40_000_000
        assert ask(fake)[-1]["eval_count"] == 4


def test_a_replay_can_end_without_its_end() -> None:
    with (
        FakeServer(replays=[Replay(chunks=((0, b"{}\n"),), ended=False)]) as fake,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        ask(fake)


def test_in_a_process_of_its_own_it_keeps_the_same_true_times() -> None:
    with FakeServer(Figures(faults={1: "refuse"}), process=True) as fake:
        done = ask(fake)[-1]
        ask(fake)
        served, requests = fake.served, fake.requests
        child = fake.child
    assert done["prompt_eval_duration"] == served[0].prefill_ns
    assert [s.status for s in served] == [200, 500]
    assert requests == ["POST /api/chat"] * 2
    assert child is not None and child.returncode == 0
