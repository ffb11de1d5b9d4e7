"""Faults of relays that people met, retold: what a browser brings along, and clients with loops of their own.

The ids are those of the collection of cases; leaving clients, events and bodies are in test_serve_chat.py,
test_serve_lifecycle.py and test_serve_request.py.
"""

import asyncio

import httpx
import pytest

from llmlab.fake import FakeServer, Figures
from tests.played import answer, done_line, refusal
from tests.serving import MODEL, answer_text, bench, events, sent
from tests.threaded import Threaded

HI = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
SSE = {
    **answer({"text": 'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'}),
    "headers": {"content-type": "text/event-stream"},
    "route": "POST /v1/chat/completions",
}
PATHS = {
    "/chat": ({"message": "hi"}, "/api/chat"),
    "/api/chat": (HI, "/api/chat"),
    "/api/generate": ({"model": MODEL, "prompt": "hi"}, "/api/generate"),
    "/v1/chat/completions": ({**HI, "stream": True}, "/v1/chat/completions"),
}


@pytest.mark.parametrize("path", PATHS)
async def test_c91_what_a_browser_brings_along_stays_here(path) -> None:
    generated = {**answer({"line": {"response": "x", "done": False}}, done_line()), "route": "POST /api/generate"}
    async with bench(answer("x", done_line()), generated, SSE) as (upstream, service, client):
        brought = {"origin": service.url, "referer": f"{service.url}/", "cookie": "a=b", "x-forwarded-for": "10.0.0.1"}
        body, asked = PATHS[path]
        assert (await client.post(path, json=body, headers=brought)).status_code == 200
        (request,) = sent(upstream, asked)
        assert not {"origin", "referer", "cookie", "x-forwarded-for"} & set(request.headers)
        assert request.headers["host"] == upstream.url.removeprefix("http://")


@pytest.mark.parametrize("path", ["/chat", "/api/chat", "/v1/chat/completions"])
async def test_c91_an_empty_403_says_which_setting_allows_us(path) -> None:
    body, asked = PATHS[path]
    async with bench({**refusal(403), "route": f"POST {asked}"}) as (_, _, client):
        response = await client.post(path, json=body)
        assert response.status_code in (403, 502)
        assert "OLLAMA_ORIGINS" in response.text


async def test_c88_a_reconnect_starts_nothing_and_the_end_is_an_event() -> None:
    async with bench(answer("x", done_line()), answer("y", done_line())) as (upstream, _, client):
        first = events((await client.post("/chat", json={"message": "hi"})).text)
        assert [name for name, _ in first][-1] == "stats"
        again = await client.get("/chat", headers={"last-event-id": "7", "accept": "text/event-stream"})
        assert again.status_code == 405
        assert len(sent(upstream)) == 1


def test_c95_two_loops_one_after_the_other_and_at_once() -> None:
    with (
        FakeServer(Figures(decode_gap_ns=500_000, stop_after=4)) as fake,
        Threaded(fake.url) as one,
        Threaded(fake.url) as two,
    ):

        async def ask(url: str) -> str:
            async with httpx.AsyncClient(trust_env=False) as client:
                return answer_text(events((await client.post(f"{url}/chat", json={"message": "hi"})).text))

        assert [asyncio.run(ask(server.url)) for server in (one, two, one)] == ["The river carried grain"] * 3


@pytest.mark.parametrize("path", ["/chat", "/api/chat"])
async def test_a_server_that_restarts_between_calls_is_asked_again(path) -> None:
    """Its idle connections are gone; nobody notices."""
    body, _ = PATHS[path]
    script = [answer("a", done_line()), answer("b", done_line())]
    async with bench(*script) as (upstream, _, client):
        assert (await client.post(path, json=body)).status_code == 200
        upstream.drop_idle()
        response = await client.post(path, json=body)
        assert response.status_code == 200 and '"b"' in response.text


LOST = {
    "refused": refusal(500, {"error": "boom"}),
    "half": answer("the first half"),
    "reset": answer("the first half", end="reset"),
    "load": answer(done_line("load")),
    "error": answer("the first half", {"line": {"error": "boom"}}),
}


@pytest.mark.parametrize("lost", LOST)
async def test_c112_a_failed_turn_leaves_nothing_in_the_conversation(lost) -> None:
    async with bench(answer("one", done_line()), LOST[lost], answer("fine", done_line())) as (upstream, _, client):
        for message in ("first", "bad", "good"):
            await client.post("/chat", json={"message": message, "session": "me"})
        contents = [m["content"] for m in sent(upstream)[-1].json["messages"]]
        assert contents == ["first", "one", "good"]
