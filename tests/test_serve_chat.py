"""POST /chat: what a client is sent, in every way an answer can go."""

import asyncio
import time

import pytest

from llmlab.fake import FakeServer, Figures
from llmlab.fake.model import PROSE
from tests.played import PlayedServer, answer, done_line, line, refusal
from tests.serving import MODEL, RawClient, answer_text, asking, bench, events, ollama_pages, serving, until

QUICK = {"decode_gap_ns": 500_000, "prefill_tokens_per_s": 1_000_000.0}


async def ask(service, body, **more):
    async with asking(service) as client:
        return await client.post("/chat", json=body, **more)


async def test_an_answer_streams_as_deltas_and_ends_with_its_numbers(rows):
    with FakeServer(Figures(decode_gap_ns=5_000_000, stop_after=12)) as fake:
        async with serving(fake.url) as service:
            response = await ask(service, {"message": "What is a KV cache?"})
            found = events(response.text)
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream"
            assert [name for name, _ in found[:2]] == ["message", "receipt"]
            assert answer_text(found).startswith("The river")
            name, stats = found[-1]
            assert name == "stats"
            (row,) = rows("select * from calls")
            assert stats["call"] == row["id"]
            assert stats["prompt_tokens"] == row["prompt_tokens"] == fake.served[0].read_tokens
            assert stats["ttft_ns"] == row["ttft_ns"] > 0
            assert stats["tokens_per_s"] > 0
            assert (stats["dropped"], stats["cut"]) == (0, "no")
            sent = fake.served[0].body
            assert sent["options"]["num_ctx"] == 4096
            assert sent["truncate"] is False


async def test_the_row_is_durable_when_the_numbers_are_sent(rows):
    with FakeServer(Figures(**QUICK, stop_after=3)) as fake:
        async with serving(fake.url) as service:
            response = await ask(service, {"message": "hi"})
            assert [row["id"] for row in rows("select id from calls")] == [events(response.text)[-1][1]["call"]]


async def test_newlines_spaces_and_line_separators_survive():
    pieces = ["| a | b |\n|---|---|\n", "\n", "  indented\r\nx", "u\u2028v\u2029w\x85", "中🙂", "\x00\t"]
    async with bench(answer(*pieces, done_line())) as (_, _, client):
        response = await client.post("/chat", json={"message": "hi"})
        assert answer_text(events(response.text)) == "".join(pieces)
        assert all(ch not in response.text for ch in "\u2028\u2029\x85\r")


async def test_thinking_is_kept_apart():
    thoughts = [{"line": {"message": {"content": "", "thinking": text}}} for text in ("Let me", " see.")]
    async with (
        PlayedServer([*ollama_pages(), answer(*thoughts, "42", done_line())]) as upstream,
        serving(upstream.url) as service,
    ):
        found = events((await ask(service, {"message": "hi"})).text)
        assert "".join(data.get("thinking", "") for _, data in found) == "Let me see."
        assert answer_text(found) == "42"


async def test_pieces_come_as_they_are_made_and_nothing_may_buffer_them():
    go_on = asyncio.Event()
    script = answer("a", {"wait": go_on}, "b", done_line())
    async with bench(script) as (_, _, client):
        body = {"message": "hi"}
        async with client.stream("POST", "/chat", json=body, headers={"accept-encoding": "gzip"}) as response:
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in response.headers
            lines = response.aiter_lines()
            assert await anext(lines) == 'data: {"delta":"a"}'
            go_on.set()
            assert 'data: {"delta":"b"}' in [text async for text in lines]


async def test_an_idle_line_is_kept_alive_with_comments():
    go_on = asyncio.Event()
    script = answer({"wait": go_on}, "late", done_line())
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url, idle_s=0.01) as service:
        client = await RawClient.connect(service.url)
        await client.post("/chat", {"message": "hi"})
        await client.until(b": waiting\n\n")
        await client.until(b": waiting\n\n")
        go_on.set()
        await client.until(b'data: {"delta":"late"}')
        await client.until(b"event: stats\n")
        client.leave()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (refusal(404, {"error": "model not found"}), 404),
        (refusal(400, {"error": "bad option"}), 400),
        (refusal(403), 502),
        (refusal(500, {"error": "boom"}), 502),
        (refusal(503, {"error": "busy"}, retry_after="7"), 503),
        (refusal(429, {"error": "limit"}, retry_after="9"), 503),
        ({"status": 200, "headers": {"content-type": "text/html"}, "body": [{"text": "<html>sign in</html>"}]}, 502),
        ({"status": 301, "headers": {"location": "https://h.example/api/chat"}, "body": []}, 502),
        ({"drop_connection_without_response": True, "always": True}, 502),
        (answer(end="close"), 502),
        (answer({"line": {"error": "runner stopped"}}), 502),
    ],
)
async def test_a_failure_before_the_first_event_has_its_own_status(script, status, rows):
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url) as service:
        response = await ask(service, {"message": "hi"})
        assert response.status_code == status
        assert set(response.json()) == {"error", "hint"}
        assert response.json()["error"]
        if status == 503:
            assert int(response.headers["retry-after"]) in (7, 9)
        await service.store.saved()
        assert [row["outcome"] for row in rows("select outcome from calls")] in (["error"], ["incomplete"])


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ({"end": "close"}, "incomplete"),
        ({"end": "reset"}, "incomplete"),
        ({"end": "ok"}, "incomplete"),
        ({"more": [{"line": {"error": "out of memory"}}]}, "error"),
    ],
)
async def test_a_failure_after_the_first_event_is_the_last_event(end, outcome, rows):
    script = answer("The first ", "half", *end.get("more", []), end=end.get("end", "ok"))
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url) as service:
        response = await ask(service, {"message": "hi"})
        found = events(response.text)
        assert answer_text(found) == "The first half"
        name, failure = found[-1]
        assert name == "error"
        assert failure["error"]
        assert not any(name == "stats" for name, _ in found)
        await service.store.saved()
        (row,) = rows("select id, outcome, error, pieces from calls")
        assert row["outcome"] == outcome
        assert row["id"] == failure["call"]
        assert row["pieces"] == 2


async def test_silence_of_the_server_is_a_504(rows):
    async with bench(answer({"sleep_ms": 60_000}), timeout_s=0.05) as (_, service, client):
        assert (await client.post("/chat", json={"message": "hi"})).status_code == 504
        await service.store.saved()
        assert [row["outcome"] for row in rows("select outcome from calls")] == ["timeout"]


async def test_a_server_that_is_gone_is_a_502_and_one_that_is_back_answers():
    upstream = PlayedServer([*ollama_pages(), answer("a", done_line()), answer("b", done_line())])
    async with upstream, serving(upstream.url) as service:
        assert (await ask(service, {"message": "hi"})).status_code == 200
        port = upstream.port
        await upstream.__aexit__(None, None, None)
        assert (await ask(service, {"message": "hi"})).status_code == 502
        back = await asyncio.start_server(upstream._serve, "127.0.0.1", port)
        upstream._server = back
        assert answer_text(events((await ask(service, {"message": "hi"})).text)) == "b"


async def test_a_client_that_leaves_in_mid_answer_closes_the_upstream_within_a_second(rows):
    script = answer({"repeat_forever": line("x ")["line"], "every_ms": 5})
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url) as service:
        client = await RawClient.connect(service.url)
        await client.post("/chat", {"model": MODEL, "messages": [{"role": "user", "content": "long"}]})
        await client.until(b"delta")
        await client.until(b"delta")
        client.leave()
        started = time.monotonic()
        await asyncio.wait_for(upstream.requests[-1].left.wait(), 5)
        assert time.monotonic() - started < 1
        await until(lambda: not len(service.attendance))
        assert service.target.client.in_flight == service.gate.running == 0
        await service.store.saved()
        (row,) = rows("select outcome, pieces from calls")
        assert row["outcome"] == "cancelled"
        assert row["pieces"] >= 2


async def test_a_client_that_leaves_before_the_first_token_closes_the_upstream_within_a_second(rows):
    began = asyncio.Event()
    script = answer({"call": began.set}, {"sleep_ms": 20_000}, "late", done_line())
    async with PlayedServer([*ollama_pages(), script]) as upstream, serving(upstream.url) as service:
        client = await RawClient.connect(service.url)
        await client.post("/chat", {"message": "long"})
        await began.wait()
        client.leave()
        started = time.monotonic()
        await asyncio.wait_for(upstream.requests[-1].left.wait(), 5)
        assert time.monotonic() - started < 1
        await until(lambda: not len(service.attendance))
        assert service.target.client.in_flight == service.gate.running == 0
        await service.store.saved()
        assert [row["outcome"] for row in rows("select outcome from calls")] == ["cancelled"]


async def test_generation_starts_only_by_post():
    with FakeServer(Figures(**QUICK)) as fake:
        async with serving(fake.url) as service, asking(service) as client:
            for method in ("GET", "HEAD", "PUT", "OPTIONS"):
                response = await client.request(method, "/chat", headers={"last-event-id": "7"})
                assert response.status_code == 405
            assert fake.served == []


async def test_a_session_remembers_and_another_does_not():
    script = [answer(word, done_line()) for word in ("one", "two", "three")]
    async with PlayedServer([*ollama_pages(), *script]) as upstream, serving(upstream.url) as service:
        await ask(service, {"message": "first", "session": "me", "system": "Be brief."})
        second = events((await ask(service, {"message": "second", "session": "me"})).text)
        await ask(service, {"message": "other", "session": "you"})
        assert second[-1][1]["messages"] == 4
        sent = [r.json["messages"] for r in upstream.requests if r.path == "/api/chat"]
        assert [m["content"] for m in sent[1]] == ["Be brief.", "first", "one", "second"]
        assert [m["content"] for m in sent[2]] == ["other"]
        assert len(service.sessions) == 2


async def test_a_whole_conversation_replaces_what_a_session_remembers():
    script = [answer(word, done_line()) for word in ("one", "two")]
    async with PlayedServer([*ollama_pages(), *script]) as upstream, serving(upstream.url) as service:
        await ask(service, {"message": "first", "session": "me"})
        told = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        await ask(service, {"messages": told, "session": "me"})
        sent = [r.json["messages"] for r in upstream.requests if r.path == "/api/chat"]
        assert [m["content"] for m in sent[1]] == ["a", "b", "c"]


async def test_two_requests_of_one_session_take_turns():
    go_on = asyncio.Event()
    script = [answer("one", {"wait": go_on}, done_line()), answer("two", done_line())]
    async with PlayedServer([*ollama_pages(), *script]) as upstream, serving(upstream.url) as service:
        first = asyncio.create_task(ask(service, {"message": "first", "session": "me"}))
        await until(lambda: len([r for r in upstream.requests if r.path == "/api/chat"]) == 1)
        second = asyncio.create_task(ask(service, {"message": "second", "session": "me"}))
        await until(lambda: len(service.attendance) == 2)
        assert len([r for r in upstream.requests if r.path == "/api/chat"]) == 1
        go_on.set()
        await asyncio.gather(first, second)
        assert [m["content"] for m in upstream.requests[-1].json["messages"]] == ["first", "one", "second"]


CODE_WORD = [
    {"role": "user", "content": "Remember this: the code word is BLUEBIRD."},
    {"role": "assistant", "content": "I will remember that the code word is BLUEBIRD."},
]
ASKED = {"role": "user", "content": "What was the code word?"}
TURNS = [
    message
    for _ in range(6)
    for message in ({"role": "user", "content": PROSE * 3}, {"role": "assistant", "content": "Yes."})
]


async def test_overflow_is_seen_with_and_without_the_budget():
    with FakeServer(Figures(**QUICK, stop_after=20)) as fake:
        async with serving(fake.url, num_ctx=512) as service:

            async def told(messages, **more):
                found = events((await ask(service, {"messages": [*messages, ASKED], **more})).text)
                return answer_text(found), found[-1][1], next(d for n, d in found if n == "receipt")

            await told(CODE_WORD)  # an answer that fits calibrates the estimate
            text, stats, receipt = await told([*CODE_WORD, *TURNS], budget=False)
            assert "BLUEBIRD" not in text
            assert stats["cut"] == "proved"
            assert stats["notes"]
            assert receipt["window"]["free"] < 0

            text, stats, receipt = await told([*CODE_WORD, *TURNS])
            assert "BLUEBIRD" not in text
            assert stats["dropped"] == len(receipt["dropped"]) > 0
            assert receipt["dropped"][:2] == [0, 1]
            assert receipt["window"]["dropped"] > 0
            assert receipt["window"]["free"] >= receipt["window"]["reserve"]

            pinned = [{**message, "pinned": True} for message in CODE_WORD]
            text, stats, receipt = await told([*pinned, *TURNS])
            assert "BLUEBIRD" in text
            assert receipt["window"]["pinned"] > 0
            assert 0 not in receipt["dropped"]


async def test_what_cannot_fit_is_a_413_with_the_numbers_and_nothing_is_sent(fake):
    async with serving(fake.url, num_ctx=256) as service:
        response = await ask(service, {"message": "word " * 2000, "pinned": True})
        assert response.status_code == 413
        assert "tokens" in response.json()["error"]
        assert fake.served == []


async def test_the_clients_choices_reach_the_server():
    with FakeServer(Figures(**QUICK, stop_after=3)) as fake:
        async with serving(fake.url, system="From the start.", options={"seed": 1}) as service:
            body = {"message": "hi", "num_ctx": 1024, "num_predict": 5, "think": False, "options": {"temperature": 0}}
            assert (await ask(service, body)).status_code == 200
            sent = fake.served[0].body
            assert sent["options"] == {"seed": 1, "temperature": 0, "num_ctx": 1024, "num_predict": 5}
            assert sent["think"] is False
            assert sent["messages"][0] == {"role": "system", "content": "From the start."}


async def test_an_unknown_model_is_a_404_that_names_what_there_is(fake):
    async with serving(fake.url) as service:
        response = await ask(service, {"message": "hi", "model": "nosuch:1b"})
        assert response.status_code == 404
        assert fake.model in response.json()["error"]


async def test_text_is_stored_only_where_that_was_asked(fake, rows):
    async with serving(fake.url, keep_text=True) as service:
        await ask(service, {"message": "keep me", "num_predict": 3})
    assert "keep me" in rows("select * from texts")[0]["prompt_json"]


async def test_an_openai_compatible_server_is_talked_to_as_well():
    with FakeServer(Figures(**QUICK, openai_only=True, stop_after=12)) as fake:
        async with serving(fake.url) as service:
            found = events((await ask(service, {"message": "hi"})).text)
            assert answer_text(found)
            assert found[-1][1]["prompt_tokens"] == fake.served[0].read_tokens
            assert next(d for n, d in found if n == "receipt")["window"]["num_ctx"] == 4096


async def test_the_window_can_be_asked_for_without_asking_the_model(fake):
    async with serving(fake.url, num_ctx=512) as service, asking(service) as client:
        pinned = [{**message, "pinned": True} for message in CODE_WORD]
        told = (await client.post("/window", json={"messages": [*pinned, *TURNS, ASKED]})).json()
        bar = told["window"]
        assert bar["num_ctx"] == 512 == bar["system"] + bar["pinned"] + bar["kept"] + bar["free"]
        assert told["dropped"][:2] == [2, 3]
        everything = (await client.post("/window", json={"messages": [*TURNS, ASKED], "budget": False})).json()
        assert everything["window"]["free"] < 0
        assert everything["dropped"] == []
        assert (await client.post("/window", json={"message": "word " * 2000})).status_code == 413
        assert (await client.post("/window", json={"massage": "x"})).status_code == 422
        assert fake.served == []
