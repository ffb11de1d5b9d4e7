"""The recording proxies: bytes pass unchanged, every call is a row, errors keep the protocol's shape."""

import asyncio
import gzip
import json
import time

import httpx
import pytest

from llmlab.fake import FakeServer, Figures
from tests.played import PlayedServer, answer, done_line, line, refusal, step_bytes
from tests.serving import (
    MODEL,
    RawClient,
    asking,
    bench,
    ollama_pages,
    openai_pages,
    saved_calls,
    sent,
    serving,
    sse,
    until,
)

QUICK = {"decode_gap_ns": 500_000, "prefill_tokens_per_s": 1_000_000.0}
HI = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
END = done_line()
DONE = END["line"]


def delta(text, **more):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


USAGE = {"choices": [], "usage": {"prompt_tokens": 21, "completion_tokens": 3, "total_tokens": 24}}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


ODD_ANSWERS = [
    [{"text": '{"message":{"content":"a"},"done":false}\r\n\r\n   \n'}, END],
    [{"hex": b'{"message":{"content":"\xe4\xb8'.hex()}, {"hex": b'\xad"},"done":false}\n'.hex()}, END],
    [
        {"text": '{ "message" : {"content":"\\ud83d" },"done":false}\n{"message":{"content":"\\ude00"}}\n'},
        {"line": DONE},
    ],
    [{"hex": b'{"message":{"content":"\xff\xfe"},"done":false}\n'.hex()}, END],
    [
        {"line": {"message": {"content": "", "thinking": "hm", "tool_calls": [{"function": {"name": "f"}}]}}},
        {"line": DONE},
    ],
    [{"burst": [line("a"), line("b"), line("c")]}, {"text": json.dumps(DONE)}],
    [{"line": {"error": "out of memory", "code": 5}}],
]


@pytest.mark.parametrize("steps", ODD_ANSWERS)
async def test_the_answers_bytes_pass_unchanged(steps):
    whole = b"".join(
        b"".join(map(step_bytes, step["burst"])) if "burst" in step else step_bytes(step) for step in steps
    )
    async with bench(answer(*steps)) as (_upstream, _, client):
        response = await client.post("/api/chat", json=HI)
        assert response.status_code == 200
        assert response.content == whole
        assert response.headers["content-type"] == "application/x-ndjson"


async def test_the_requests_bytes_pass_unchanged_with_a_fixed_set_of_headers():
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"x": 1.0}}}]
    odd = {**HI, "tools": tools, "think": "low", "format": {"a": [1, 2.50]}, "unknown": None, "keep_alive": "5m"}
    odd["messages"] = [{"role": "user", "content": "see", "images": ["aGk="]}, {"role": "robot", "content": "\ud83d"}]
    raw = json.dumps(odd, indent=3).encode()
    secret = {"origin": None, "referer": "https://x.example/", "cookie": "a=b", "authorization": "Bearer mine"}
    async with bench(answer("ok", done_line())) as (upstream, service, client):
        headers = {k: v for k, v in secret.items() if v} | {"origin": service.url, "x-forwarded-for": "1.2.3.4"}
        assert (await client.post("/api/chat", content=raw, headers=headers)).status_code == 200
        request = sent(upstream)[-1]
        assert request.body == raw
        assert set(request.headers) == {
            "host", "accept", "accept-encoding", "content-type", "user-agent", "content-length",
        }  # fmt: skip
        assert request.headers["host"] == f"127.0.0.1:{upstream.port}"


async def test_an_answer_that_comes_compressed_although_nobody_asked_is_inflated(rows):
    raw = json.dumps(DONE).encode() + b"\n"
    squeezed = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    script = {**answer(), "headers": squeezed, "body": [{"hex": gzip.compress(raw).hex()}]}
    async with bench(script) as (_, service, client):
        response = await client.post("/api/chat", json=HI, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in response.headers
        assert response.content == raw
        assert [row["output_tokens"] for row in await saved_calls(service, rows)] == [40]


async def test_many_first_calls_ask_once_what_must_be_known(rows):
    async with bench(*(answer("a", done_line()) for _ in range(20)), max_parallel=20) as (upstream, service, client):
        await asyncio.gather(*(client.post("/api/chat", json=HI) for _ in range(20)))
        assert len(await saved_calls(service, rows)) == 20
        assert all(row["num_ctx_loaded"] == 4096 for row in rows("select num_ctx_loaded from calls"))
        assert len(sent(upstream, "/api/ps")) <= 3


async def test_pieces_pass_as_they_come():
    go_on = asyncio.Event()
    script = answer("a", {"wait": go_on}, "b", done_line())
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url) as service:
        client = await RawClient.connect(service.url)
        await client.post("/api/chat", HI)
        await client.until(b'"a"')
        go_on.set()
        await client.until(b'"b"')
        client.leave()


async def test_a_call_is_a_row_with_the_clients_own_model_and_window(rows):
    async with bench(answer("a", "b", done_line()), pages=ollama_pages(loaded=2048)) as (_upstream, service, client):
        body = {**HI, "options": {"num_ctx": 2048, "temperature": 0}}
        response = await client.post("/api/chat", json=body)
        (row,) = await saved_calls(service, rows)
        (model,) = rows("select * from models")
        assert row["id"] == response.headers["x-llmlab-call"]
        assert row["model_id"] == model["id"]
        assert model["name"] == MODEL
        assert (row["num_ctx"], row["num_ctx_loaded"]) == (2048, 2048)
        assert (row["prompt_tokens"], row["output_tokens"], row["pieces"]) == (120, 40, 2)
        assert row["outcome"] == "ok"
        assert row["ttft_ns"] <= row["last_piece_ns"] <= row["total_ns"]
        assert row["timing_source"] == "socket"
        assert row["run_id"] == service.ledger.run_id


async def test_an_answer_in_one_piece_is_recorded_without_a_first_token(rows):
    whole = {"model": MODEL, "message": {"role": "assistant", "content": "all"}, **DONE} | {
        "message": {"role": "assistant", "content": "all"}
    }
    script = {**answer(), "headers": {"content-type": "application/json"}, "body": [{"text": json.dumps(whole)}]}
    async with bench(script) as (_upstream, service, client):
        response = await client.post("/api/chat", json={**HI, "stream": False})
        assert response.json()["message"]["content"] == "all"
        assert response.headers["content-length"] == str(len(response.content))
        (row,) = await saved_calls(service, rows)
        assert row["output_tokens"] == 40
        assert row["ttft_ns"] is None
        assert row["total_ns"] > 0
        assert "unstreamed" in row["flags"]


async def test_generate_is_relayed_and_recorded(rows):
    script = {
        **answer(),
        "route": "POST /api/generate",
        "body": [{"line": {"response": "Hi", "done": False}}, END],
    }
    async with bench(script) as (_upstream, service, client):
        body = {"model": MODEL, "prompt": "hello", "system": "be nice"}
        assert (await client.post("/api/generate", json=body)).status_code == 200
        (row,) = await saved_calls(service, rows)
        assert (row["messages_sent"], row["prompt_chars"], row["output_tokens"]) == (2, 12, 40)


async def test_a_request_that_only_loads_the_model_passes_unrecorded(rows):
    load = {**done_line("load")["line"]}
    script = {**answer({"line": load}), "route": "POST /api/generate"}
    async with bench(script) as (_upstream, service, client):
        assert (await client.post("/api/generate", json={"model": MODEL})).json()["done_reason"] == "load"
        assert await saved_calls(service, rows) == []


async def test_the_openai_wire_is_relayed_and_recorded(rows):
    script = sse(delta("Hel"), delta("lo"), STOP, USAGE, "[DONE]")
    async with bench(script, pages=openai_pages()) as (_upstream, service, client):
        response = await client.post("/v1/chat/completions", json={**HI, "stream": True})
        assert response.content == b"".join(step["text"].encode() for step in script["body"])
        (row,) = await saved_calls(service, rows)
        assert (row["prompt_tokens"], row["output_tokens"], row["num_ctx"]) == (21, 3, None)
        assert row["num_ctx_loaded"] == 4096


async def test_counts_that_a_client_did_not_ask_for_stay_unknown(rows):
    async with bench(sse(delta("Hi"), STOP, "[DONE]"), pages=openai_pages()) as (upstream, service, client):
        await client.post("/v1/chat/completions", json={**HI, "stream": True})
        (row,) = await saved_calls(service, rows)
        assert (row["outcome"], row["prompt_tokens"], row["output_tokens"]) == ("ok", None, None)
        assert row["ttft_ns"] > 0
        assert "stream_options" not in sent(upstream, "/v1/chat/completions")[-1].json


async def test_the_official_ollama_client_works_unchanged(rows):
    import ollama

    with FakeServer(Figures(**QUICK, stop_after=10)) as fake:
        async with serving(fake.url) as service:
            client = ollama.AsyncClient(host=service.url, trust_env=False)
            messages = [{"role": "user", "content": "hi"}]
            parts = [part async for part in await client.chat(fake.model, messages=messages, stream=True)]
            assert "".join(part.message.content for part in parts).startswith("The river")
            assert parts[-1].eval_count == fake.served[0].output_tokens == 11
            options = {"num_ctx": 1024}
            parts = [p async for p in await client.chat(fake.model, messages=messages, options=options, stream=True)]
            assert [model.model for model in (await client.list()).models] == [fake.model]
            assert (await client.show(fake.model)).capabilities == ["completion"]
            assert (await client.ps()).models[0].context_length == 1024
            with pytest.raises(ollama.ResponseError) as refused:
                await client.chat("nosuch", messages=messages)
            assert refused.value.status_code == 404
            with pytest.raises(ollama.ResponseError) as refused:
                await client.pull("other:1b")
            assert refused.value.status_code == 403
            calls = await saved_calls(service, rows)
            assert [row["outcome"] for row in calls] == ["ok", "ok", "error"]
            assert [row["num_ctx"] for row in calls] == [None, 1024, None]
            assert [row["output_tokens"] for row in calls] == [11, 11, None]
            await client._client.aclose()


async def test_the_official_ollama_client_works_without_streaming(rows):
    import ollama

    whole = {"model": MODEL, **DONE, "message": {"role": "assistant", "content": "all of it"}}
    script = {**answer(), "headers": {"content-type": "application/json"}, "body": [{"text": json.dumps(whole)}]}
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url) as service:
        client = ollama.AsyncClient(host=service.url, trust_env=False)
        response = await client.chat(MODEL, messages=[{"role": "user", "content": "hi"}])
        assert response.message.content == "all of it"
        assert [row["output_tokens"] for row in await saved_calls(service, rows)] == [40]
        await client._client.aclose()


async def test_the_official_openai_client_works_unchanged(rows):
    import openai

    whole = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "all"}, "finish_reason": "stop"}],
        "usage": USAGE["usage"],
    }
    one = {**sse(), "headers": {"content-type": "application/json"}, "body": [{"text": json.dumps(whole)}]}
    error = {**refusal(404, {"error": {"message": "no such model", "type": "not_found_error"}}), "route": one["route"]}
    frames = [
        {**d, "id": "c", "created": 1, "model": MODEL, "object": "chat.completion.chunk"}
        for d in (delta("Hi"), STOP, USAGE)
    ]
    script = [sse(*frames, "[DONE]"), one, error]
    async with bench(*script, pages=openai_pages()) as (_, service, _), httpx_client() as http:
        client = openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0, http_client=http)
        messages = [{"role": "user", "content": "hi"}]
        usage = {"include_usage": True}
        stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True, stream_options=usage)
        parts = [part async for part in stream]
        assert parts[0].choices[0].delta.content == "Hi"
        assert parts[-1].usage.prompt_tokens == 21
        response = await client.chat.completions.create(model=MODEL, messages=messages)
        assert response.choices[0].message.content == "all"
        with pytest.raises(openai.NotFoundError, match="no such model"):
            await client.chat.completions.create(model="nosuch", messages=messages)
        assert [model.id async for model in client.models.list()] == [MODEL]
        calls = await saved_calls(service, rows)
        assert [row["outcome"] for row in calls] == ["ok", "ok", "error"]
        assert [row["output_tokens"] for row in calls] == [3, 3, None]


def httpx_client():
    """What the openai package builds on, without the environment's proxies."""
    import openai

    return openai.DefaultAsyncHttpxClient(trust_env=False)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
@pytest.mark.parametrize("raw", [b"", b"[1,2]", b"{", b'{"model":NaN}', b"\xff", b"[" * 5000])
async def test_what_is_no_json_object_is_a_400_in_the_protocols_shape(path, raw, fake):
    async with serving(fake.url) as service, asking(service) as client:
        response = await client.post(path, content=raw)
        assert response.status_code == 400
        error = response.json()["error"]
        assert isinstance(error, str) if path.startswith("/api") else error["message"]
        assert fake.served == []


HTML = {"status": 200, "headers": {"content-type": "text/html"}, "body": [{"text": "<html>login</html>"}]}


@pytest.mark.parametrize(
    ("script", "status", "outcome"),
    [
        (refusal(400, {"error": "bad option"}), 400, "error"),
        (refusal(503, {"error": "busy"}, retry_after="4"), 503, "error"),
        (HTML, 502, "error"),
        ({**HTML, "status": 504}, 502, "error"),
        ({"status": 200, "headers": {}, "body": [{"text": "Ollama is running"}]}, 502, "error"),
        ({"status": 200, "headers": {"content-type": "application/json"}, "body": []}, 502, "error"),
        (refusal(403), 502, "error"),
        ({"status": 302, "headers": {"location": "https://h.example/"}, "body": []}, 502, "error"),
        ({"drop_connection_without_response": True, "always": True}, 502, "error"),
        ({**answer(end="close"), "headers_first": True}, 502, "incomplete"),
    ],
)
async def test_a_failure_keeps_the_protocols_shape_and_is_a_row(script, status, outcome, rows):
    async with bench(script) as (_upstream, service, client):
        response = await client.post("/api/chat", json=HI)
        assert response.status_code == status
        assert isinstance(response.json()["error"], str)
        if status == 503:
            assert response.headers["retry-after"] == "4"
        if script.get("status") == 302:
            assert "https://h.example" in response.json()["error"]
        if script.get("status") == 403:
            assert "OLLAMA_ORIGINS" in response.json()["error"]
        (row,) = await saved_calls(service, rows)
        assert row["outcome"] == outcome
        assert row["error"]


async def test_a_key_that_the_server_repeats_does_not_reach_the_client(monkeypatch):
    monkeypatch.setenv("LLMLAB_API_KEY", "k3y-word")
    script = refusal(401, {"error": "wrong key k3y-word"})
    async with bench(script, {**script, "route": "GET /api/secret"}) as (_, _, client):
        for response in (await client.post("/api/chat", json=HI), await client.get("/api/secret")):
            assert response.status_code == 401
            assert response.json() == {"error": "wrong key ***"}


async def test_an_answer_without_any_text_that_only_loaded_the_model_is_no_answer(rows):
    async with bench(answer(done_line("load"))) as (_, service, client):
        assert (await client.post("/api/chat", json=HI)).json()["done_reason"] == "load"
        assert [row["outcome"] for row in await saved_calls(service, rows)] == ["error"]


async def test_the_end_of_an_answer_counts_although_its_connection_broke(rows):
    async with bench(answer("a", {"text": json.dumps(DONE)}, end="close")) as (_, service, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/api/chat", json=HI)
        (row,) = await saved_calls(service, rows)
        assert (row["outcome"], row["output_tokens"]) == ("ok", 40)


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_cut_answer_never_ends_well(end, rows):
    async with bench(answer("a", "b", end=end)) as (_upstream, service, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/api/chat", json=HI)
        (row,) = await saved_calls(service, rows)
        assert (row["outcome"], row["pieces"]) == ("incomplete", 2)


async def test_an_answer_that_ends_without_saying_done_passes_and_is_recorded_as_incomplete(rows):
    async with bench(answer("a", "b")) as (_upstream, service, client):
        assert (await client.post("/api/chat", json=HI)).status_code == 200
        assert [row["outcome"] for row in await saved_calls(service, rows)] == ["incomplete"]


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_a_server_that_is_gone_or_silent(path, rows):
    upstream = PlayedServer([*ollama_pages(), {**answer({"sleep_ms": 60_000}), "route": f"POST {path}"}])
    async with upstream, serving(upstream.url, timeout_s=0.05) as service, asking(service) as client:
        assert (await client.post(path, json=HI)).status_code == 504
        await upstream.__aexit__(None, None, None)
        response = await client.post(path, json=HI)
        assert response.status_code == 502
        error = response.json()["error"]
        assert "no server at" in (error if path.startswith("/api") else error["message"])
        assert [row["outcome"] for row in await saved_calls(service, rows)] == ["timeout", "error"]


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_client_that_leaves_closes_the_upstream_within_a_second(when, rows):
    began = asyncio.Event()
    forever = {"repeat_forever": line("x ")["line"], "every_ms": 5}
    script = answer({"call": began.set}, *([{"sleep_ms": 60_000}] if when == "before" else [forever]))
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url) as service:
        client = await RawClient.connect(service.url)
        await client.post("/api/chat", HI)
        await began.wait()
        if when == "during":
            await client.until(b'"x "')
        client.leave()
        started = time.monotonic()
        await asyncio.wait_for(sent(upstream)[-1].left.wait(), 5)
        assert time.monotonic() - started < 1
        await until(lambda: not len(service.attendance))
        assert service.target.client.in_flight == service.gate.running == 0
        assert [row["outcome"] for row in await saved_calls(service, rows)] == ["cancelled"]
