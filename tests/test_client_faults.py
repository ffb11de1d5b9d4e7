"""What servers refuse and how that is told: one line with the cause and what to do; secrets stay secret."""

import json
from typing import Any

import httpx
import pytest
from asking import Outcome, chat, server_at, until
from hypothesis import given, settings
from hypothesis import strategies as st
from played import PlayedServer, Response, answer, done_line, json_answer, line, refusal

from llmlab.client import Client, overflow_counts
from llmlab.client.faults import retry_after_s
from llmlab.errors import LabError, ServerError, Unreachable, UsageError

TAGS = json_answer({"models": [{"name": "qwen2.5:3b"}, {"name": "demo:1b"}]}, "GET /api/tags")
V1 = "POST /v1/chat/completions"
HTML = {"content-type": "text/html"}

pytestmark = pytest.mark.usefixtures("reading")


async def told(*responses: Response, api: str = "ollama", **options: Any) -> tuple[Outcome, str, PlayedServer]:
    """A chat, what it told, and the server that was asked."""
    async with PlayedServer(responses) as server, Client(server_at(server.url, api)) as client:
        got = await chat(client, **options)
        return got, str(got.error), server


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"code": 500, "message": "no user turn", "type": "server_error"}}, "no user turn"),
        ({"error": json.dumps({"error": {"code": 500, "message": "roles"}})}, "roles"),
        ({"error": "plain"}, "plain"),
        ({"detail": [{"msg": "field required"}]}, "field required"),
        ("just a text", "just a text"),
    ],
)
async def test_a_refusal_is_one_readable_line(body: object, words: str) -> None:
    got, text, server = await told(refusal(500, body))
    assert text.startswith(f"{server_name(text)} answered 500: {words}")
    assert (got.call.outcome, got.call.http_status, got.call.error) == ("error", 500, text)
    assert isinstance(got.error, ServerError)
    assert got.error.http_status == 500
    assert len(server.requests) == 1


def server_name(text: str) -> str:
    return text.split(" ")[0]


async def test_a_long_refusal_is_cut_and_stays_on_one_line() -> None:
    got, text, _ = await told(refusal(500, {"error": "first\nsecond\x1b[31m " + "x" * 5_000}))
    assert got.error is not None
    assert len(got.error.what) == 300
    assert text.isprintable()
    assert "first second" in text


async def test_a_page_of_a_proxy_is_not_read_out() -> None:
    page = {"status": 504, "headers": HTML, "body": [{"text": "<!DOCTYPE html><title>504</title>" + "x" * 7_000}]}
    got, text, server = await told(page)
    assert "got 504 from a proxy in front of" in text
    assert "HTML page" in text
    assert server.url in text
    assert "xxx" not in text
    assert got.call.http_status == 504


@pytest.mark.parametrize(
    ("kind", "body"), [("text/html", "<html><body>Sign in</body></html>"), ("text/plain", "Ollama is running")]
)
async def test_another_service_at_the_address_is_no_answer(kind: str, body: str) -> None:
    page = {"status": 200, "headers": {"content-type": kind}, "body": [{"text": body}]}
    got, text, server = await told(page)
    assert (got.call.outcome, got.text) == ("error", "")
    assert f"{server.url} did not answer like /api/chat" in text


async def test_events_where_lines_were_expected_and_the_other_way_round() -> None:
    events = [{"text": 'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'}, {"text": "data: [DONE]\n\n"}]
    got, text, _ = await told({"headers": {"content-type": "text/event-stream"}, "body": events})
    assert (got.call.outcome, "speaks the OpenAI protocol" in text, "--api openai" in text) == ("error", True, True)
    got, text, _ = await told(answer("Hi", done_line(), route=V1), api="openai")
    assert (got.call.outcome, "speaks Ollama's protocol" in text, "--api ollama" in text) == ("error", True, True)


async def test_an_unknown_path_is_no_unknown_model() -> None:
    _, text, _ = await told(api="openai")
    assert "did not answer like /v1/chat/completions (404: 404 page not found)" in text


async def test_an_unknown_model_is_told_with_the_models_there_are() -> None:
    got, text, _ = await told(refusal(404, {"error": "model 'x' not found"}), TAGS, model="nosuch:1b")
    assert "no model 'nosuch:1b'" in text
    assert "there are: qwen2.5:3b, demo:1b" in text
    assert "ollama pull nosuch:1b" in text
    assert got.call.http_status == 404


async def test_an_unknown_model_where_there_are_none_or_very_many() -> None:
    missing = refusal(404, {"error": "?"})
    _, text, _ = await told(missing, json_answer({"models": []}, "GET /api/tags"))
    assert "there is none yet" in text
    many = {"models": [{"name": f"m{n}:1b"} for n in range(30)]}
    _, text, _ = await told(missing, json_answer(many, "GET /api/tags"))
    assert "and 18 more" in text


async def test_a_404_for_a_model_that_is_there_keeps_the_servers_words() -> None:
    _, text, _ = await told(refusal(404, {"error": "adapter gone"}), TAGS)
    assert "answered 404: adapter gone" in text


async def test_a_404_of_a_server_that_lists_nothing_keeps_its_words() -> None:
    _, text, _ = await told(refusal(404, {"error": "model 'x' not found"}))
    assert "answered 404: model 'x' not found" in text
    assert "ollama pull demo:1b" in text


async def test_an_unknown_model_on_the_other_wire() -> None:
    models = json_answer({"data": [{"id": "a"}, {"id": "b"}]}, "GET /v1/models")
    missing = refusal(404, {"error": {"message": "no such model"}})
    _, text, _ = await told({**missing, "route": V1}, models, api="openai", model="c")
    assert "no model 'c'" in text
    assert "there are: a, b" in text
    assert "ollama" not in text


async def test_signing_in_and_limits() -> None:
    link = "https://example.invalid/connect?x=1"
    got, text, server = await told(refusal(401, {"error": "unauthorized", "signin_url": link}))
    assert link in text
    assert len(server.requests) == 1
    got, text, server = await told(refusal(429, {"error": "usage limit reached"}, retry_after="120"))
    assert "usage limit reached" in text
    assert "120 s" in text
    assert len(server.requests) == 1
    assert isinstance(got.error, ServerError)
    assert got.error.retry_after_s == 120
    _, text, _ = await told(refusal(401, {"error": "unauthorized"}))
    assert "LLMLAB_API_KEY" in text
    _, text, _ = await told(refusal(503, {"error": "busy"}))
    assert "Try again later" in text


async def test_a_forbidden_host_or_origin_has_no_words_but_a_hint() -> None:
    _, text, _ = await told({"status": 403, "plain": "length"})
    assert "answered 403 without a word" in text
    assert "OLLAMA_ORIGINS" in text


async def test_a_model_that_cannot_think_is_not_broken() -> None:
    refused = refusal(400, {"error": "cannot"})
    _, text, server = await told(refused, think=True)
    assert "ask without thinking" in text
    assert (server.requests[0].json["think"], len(server.requests)) == (True, 1)
    _, text, server = await told(refused)
    assert "think" not in text
    assert "think" not in server.requests[0].json


async def test_a_refused_prompt_keeps_its_counts() -> None:
    inner = {"error": {"code": 400, "message": "too long", "n_prompt_tokens": 1726, "n_ctx": 512}}
    got, text, _ = await told(refusal(400, {"error": json.dumps(inner)}))
    assert isinstance(got.error, ServerError)
    assert overflow_counts(got.error) == (1726, 512)
    assert "answered 400: too long" in text
    got, _, _ = await told(refusal(400, {"error": "too long"}))
    assert isinstance(got.error, ServerError)
    assert overflow_counts(got.error) is None


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize(
    ("location", "base"),
    [
        ("https://h.example/api/chat", "https://h.example"),
        ("https://user:secret@h.example/sub/api/chat", "https://h.example/sub"),
        ("//h.example:8443/api/chat", "http://h.example:8443"),
    ],
)
async def test_redirects_are_told_and_not_followed(status: int, location: str, base: str) -> None:
    got, text, server = await told({"status": status, "headers": {"location": location}})
    assert f"redirects to {base}" in text
    assert f"OLLAMA_HOST or --host to {base}" in text
    assert "secret" not in text
    assert (got.call.outcome, got.call.http_status, len(server.requests)) == ("error", status, 1)


@pytest.mark.parametrize("location", [None, "http://[broken"])
async def test_a_redirect_to_nowhere(location: str | None) -> None:
    got, text, _ = await told({"status": 302, "headers": {"location": location} if location else {}})
    assert got.call.http_status == 302
    assert "redirects to" in text


KEY, PASSWORD = "sk-very-secret", "pass-very-secret"


async def test_a_key_is_sent_and_never_shown() -> None:
    echo = {"error": f"wrong key {KEY}", "header": f"Bearer {KEY}"}
    in_stream = answer("a", {"text": json.dumps(echo) + "\n"})
    async with PlayedServer([refusal(401, echo), in_stream]) as server:
        asked = server_at(server.url, key=KEY)
        async with Client(asked) as client:
            for _ in range(2):
                got = await chat(client)
                shown = [str(got.error), repr(got.error), repr(got.call), repr(client), repr(asked)]
                assert isinstance(got.error, ServerError)
                shown += [repr(got.error.body)]
                assert not [text for text in shown if KEY in text]
                assert "***" in str(got.error)
        assert [asked.headers["authorization"] for asked in server.requests] == [f"Bearer {KEY}"] * 2


async def test_user_info_is_sent_and_never_shown() -> None:
    async with (
        PlayedServer([refusal(401, {"error": f"no {PASSWORD}"})]) as server,
        Client(server_at(server.url, user_info=("ann", PASSWORD))) as client,
    ):
        got = await chat(client)
        assert server.requests[0].headers["authorization"] == "Basic YW5uOnBhc3MtdmVyeS1zZWNyZXQ="
        assert not [text for text in (str(got.error), repr(got.call), repr(client)) if PASSWORD in text]


def test_a_key_that_cannot_be_sent_is_a_usage_error() -> None:
    for key in ("schlüssel", "two\nlines"):
        with pytest.raises(UsageError) as raised:
            Client(server_at(key=key))
        assert key not in str(raised.value)


def test_an_address_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(LabError):
        Client(server_at("http://[::1"))


async def test_a_proxy_is_asked_and_named() -> None:
    """A plain HTTP proxy gets the whole address as its target."""
    route = "POST http://model.example/api/chat"
    script = [
        answer("through", done_line(), route=route),
        {"status": 502, "headers": HTML, "body": [{"text": "<html>no</html>"}], "route": route},
        {**refusal(503, {"error": "busy"}), "route": route},
    ]
    async with PlayedServer(script) as proxy:
        address = f"http://ann:{PASSWORD}@127.0.0.1:{proxy.port}"
        async with Client(server_at("http://model.example", proxy=address)) as client:
            got = await chat(client)
            assert (got.text, got.call.outcome, got.call.timing_source) == ("through", "ok", "reader")
            assert got.call.ttft_ns is not None
            for words in ("got 502 from the proxy", "was in use"):
                got = await chat(client)
                assert words in str(got.error)
                assert f"127.0.0.1:{proxy.port}" in str(got.error)
                assert PASSWORD not in str(got.error)
            assert got.call.connect_ns is None
        assert "proxy-authorization" in proxy.requests[0].headers


async def test_a_dead_proxy_is_unreachable() -> None:
    async with Client(server_at("http://model.example", proxy="http://127.0.0.1:9")) as client:
        got = await chat(client)
        assert isinstance(got.error, Unreachable)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1", "nonsense"])
def test_a_proxy_that_cannot_be_used_is_a_usage_error(proxy: str) -> None:
    with pytest.raises(UsageError):
        Client(server_at("http://model.example", proxy=proxy))


async def test_usage_is_asked_for_once_more_without_where_it_is_refused() -> None:
    events = [{"text": 'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'}]
    stream = {"route": V1, "headers": {"content-type": "text/event-stream"}, "body": events}
    refused = {**refusal(400, {"error": {"message": "unknown key"}}), "route": V1}
    async with PlayedServer([refused, stream, stream]) as server, Client(server_at(server.url, "openai")) as client:
        for _ in range(2):
            got = await chat(client, num_ctx=4096)
            assert (got.text, got.call.outcome, got.call.prompt_tokens, got.call.num_ctx) == ("Hi", "ok", None, None)
            assert got.call.ttft_ns is not None
        assert ["stream_options" in asked.json for asked in server.requests] == [True, False, False]


async def test_a_refusal_for_another_reason_is_asked_once_more_and_told() -> None:
    refused = {**refusal(400, {"error": {"message": "too long"}}), "route": V1}
    got, text, server = await told(refused, refused, api="openai")
    assert ("answered 400: too long" in text, len(server.requests)) == (True, 2)
    assert got.call.http_status == 400


async def test_a_server_that_took_usage_once_is_not_asked_twice() -> None:
    events = [{"text": 'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'}]
    stream = {"route": V1, "headers": {"content-type": "text/event-stream"}, "body": events}
    refused = {**refusal(400, {"error": {"message": "too long"}}), "route": V1}
    async with PlayedServer([stream, refused]) as server, Client(server_at(server.url, "openai")) as client:
        assert (await chat(client)).call.outcome == "ok"
        assert (await chat(client)).call.http_status == 400
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("120", 120), ("0.5", 0.5), ("-3", 0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0), ("soon", None), ("nan", None),
     ("inf", None), ("1e300", None), ("", None), (None, None)],
)  # fmt: skip
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value) == seconds


@settings(max_examples=100, deadline=None)
@given(st.integers(200, 599), st.binary(max_size=200) | st.text(max_size=50).map(str.encode), st.booleans())
def test_any_answer_is_a_call_and_at_most_a_lab_error(status: int, body: bytes, openai: bool) -> None:
    import asyncio

    async def run() -> Outcome:
        transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
        async with Client(server_at(api="openai" if openai else "ollama"), transport=transport) as client:
            return await chat(client)

    got = asyncio.run(run())
    assert (got.error is None) == (got.call.outcome == "ok")
    assert got.call.error is None or got.call.error.isprintable()


async def test_a_refusal_leaves_the_connection_for_the_next_call() -> None:
    script = [refusal(503, {"error": "busy"}), answer(line("a"), done_line())]
    async with PlayedServer(script) as server, Client(server_at(server.url)) as client:
        assert (await chat(client)).call.outcome == "error"
        await until(lambda: server.answered == 1)
        assert (await chat(client)).call.outcome == "ok"
        assert server.connections == 1
