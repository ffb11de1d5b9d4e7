"""The budget for clients that know nothing of it, and what the proxies say of silent cuts."""

import json

from llmlab.fake import FakeServer, Figures
from llmlab.fake.model import PROSE
from tests.played import answer, done_line, refusal
from tests.serving import MODEL, asking, bench, ollama_pages, openai_pages, saved_calls, sent, serving, sse

QUICK = {"decode_gap_ns": 500_000, "prefill_tokens_per_s": 1_000_000.0}
HI = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TURNS = [{"role": "user", "content": PROSE * 3}, {"role": "assistant", "content": "Yes."}] * 6
PINNED = [
    {"role": "user", "content": "The code word is BLUEBIRD.", "pinned": True},
    {"role": "assistant", "content": "I will remember that the code word is BLUEBIRD.", "pinned": True},
]
ASKED = {"role": "user", "content": "What was the code word?"}


async def test_the_pin_is_ours_and_not_sent_on():
    async with bench(answer("ok", done_line())) as (upstream, _, client):
        body = {**HI, "messages": [*PINNED, {**ASKED, "images": ["aGk="]}]}
        assert (await client.post("/api/chat", json=body)).status_code == 200
        asked = sent(upstream)[-1].json
        assert all("pinned" not in message for message in asked["messages"])
        assert asked["messages"][-1]["images"] == ["aGk="]
        assert {key: asked[key] for key in asked if key != "messages"} == {"model": MODEL}


async def test_the_budget_fits_clients_that_know_nothing_of_it(rows):
    with FakeServer(Figures(**QUICK, stop_after=20)) as fake:
        async with serving(fake.url, budget=True) as service, asking(service) as client:
            body = {"model": fake.model, "messages": [*PINNED, *TURNS, ASKED], "options": {"num_ctx": 512, "top_k": 1}}
            response = await client.post("/api/chat", json=body)
            assert "BLUEBIRD" in response.text
            asked = fake.served[-1].body
            assert asked["truncate"] is False
            assert asked["options"]["top_k"] == 1
            assert 0 < asked["options"]["num_predict"] < 512
            assert len(asked["messages"]) < len(body["messages"])
            assert int(response.headers["x-llmlab-dropped"]) == len(body["messages"]) - len(asked["messages"])
            (row,) = await saved_calls(service, rows)
            assert row["messages_dropped"] == int(response.headers["x-llmlab-dropped"])
            assert (row["messages_pinned"], row["num_ctx"], row["cut"]) == (2, 512, "no")


async def test_the_budget_uses_the_window_that_is_loaded_and_without_one_leaves_things_alone():
    script = [answer("ok", done_line()), answer("ok", done_line())]
    pages = ollama_pages(loaded=512)
    async with bench(*script, pages=pages, budget=True) as (upstream, _, client):
        body = {**HI, "messages": [*TURNS, ASKED]}
        response = await client.post("/api/chat", json=body)
        assert int(response.headers["x-llmlab-dropped"]) > 0
        assert "num_ctx" not in sent(upstream)[-1].json["options"]
    async with bench(*script, pages=ollama_pages(loaded=None), budget=True) as (upstream, _, client):
        raw = json.dumps(body).encode()
        response = await client.post("/api/chat", content=raw)
        assert "x-llmlab-dropped" not in response.headers
        assert [r.body for r in sent(upstream)] == [raw]


async def test_a_refusal_for_length_is_fitted_once_more():
    counts = {"error": {"message": "too long", "n_prompt_tokens": 600, "n_ctx": 512}}
    script = [refusal(400, {"error": json.dumps(counts)}), answer("ok", done_line())]
    async with bench(*script, budget=True) as (upstream, _, client):
        body = {**HI, "messages": [*TURNS, ASKED], "options": {"num_ctx": 512}}
        assert (await client.post("/api/chat", json=body)).status_code == 200
        first, second = (r.json["messages"] for r in sent(upstream))
        assert len(second) < len(first) < len(body["messages"])


async def test_a_window_smaller_than_asked_is_remembered():
    counts = {"error": {"message": "too long", "n_prompt_tokens": 600, "n_ctx": 512}}
    script = [refusal(400, {"error": json.dumps(counts)}), answer("ok", done_line()), answer("ok", done_line())]
    async with bench(*script, pages=ollama_pages(loaded=512), budget=True) as (upstream, service, client):
        body = {**HI, "messages": [*TURNS, ASKED], "options": {"num_ctx": 4096}}
        for _ in range(2):
            assert (await client.post("/api/chat", json=body)).status_code == 200
            await service.ledger.settle()
        asked = [request.json for request in sent(upstream)]
        assert [len(a["messages"]) < len(body["messages"]) for a in asked] == [False, True, True]
        assert [a["options"]["num_ctx"] for a in asked] == [4096, 4096, 4096]


async def test_what_cannot_fit_is_refused_before_it_is_sent(rows):
    with FakeServer(Figures(**QUICK)) as fake:
        async with serving(fake.url, budget=True) as service, asking(service) as client:
            body = {**HI, "model": fake.model, "messages": [{"role": "user", "content": PROSE * 30}]}
            response = await client.post("/api/chat", json={**body, "options": {"num_ctx": 256}})
            assert response.status_code == 413
            assert "tokens" in response.json()["error"]
            assert fake.served == []
            assert "x-llmlab-call" not in response.headers
            assert await saved_calls(service, rows) == []


async def test_the_budget_fits_openai_clients_too():
    script = sse({"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}, "[DONE]")
    async with bench(script, pages=openai_pages(window=512), budget=True) as (upstream, _, client):
        body = {**HI, "messages": [*TURNS, ASKED], "stream": True, "max_completion_tokens": 5000}
        response = await client.post("/v1/chat/completions", json=body)
        asked = sent(upstream, "/v1/chat/completions")[-1].json
        assert int(response.headers["x-llmlab-dropped"]) > 0
        assert 0 < asked["max_completion_tokens"] < 512
        assert "truncate" not in asked
        assert "max_tokens" not in asked


async def test_a_silent_cut_is_suspected_and_said():
    with FakeServer(Figures(**QUICK, stop_after=5)) as fake:
        async with serving(fake.url) as service, asking(service) as client:
            small = {"model": fake.model, "messages": [*TURNS[:2], ASKED], "options": {"num_ctx": 512}}
            await client.post("/api/chat", json=small)
            await service.ledger.settle()
            response = await client.post("/api/chat", json={**small, "messages": [*TURNS, ASKED]})
            assert response.headers["x-llmlab-cut"] == "suspected"
            await service.ledger.settle()
            text = (await client.get("/metrics")).text
            assert 'llmlab_cut_calls_total{verdict="suspected"} 1.0' in text
