"""The engine's API at its edges: odd requests, both wires, official clients, and who may ask at all."""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import openai
import pytest
from engine_captures import captures, user
from engine_fixture import engine

from llmlab.engine import Engine

__all__ = ["engine"]
pytestmark = pytest.mark.engine

COLOURS = [user("Name three primary colours.")]


@pytest.fixture
def http(engine: Engine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, trust_env=False, timeout=60) as client:
        yield client


def error_of(response: httpx.Response) -> str:
    error = response.json()["error"]
    return str(error["message"] if isinstance(error, dict) else error)


def hi(more: str) -> bytes:
    return b'{"model": "M", "messages": [{"role": "user", "content": "hi"}], %s}' % more.encode()


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/api/chat", b"", 400),
        ("/api/chat", b"not json", 400),
        ("/api/chat", b'{"model": "M", "messages": [', 400),
        ("/api/chat", b"[]", 400),
        ("/api/chat", b"[" * 100_000, 400),
        ("/api/chat", b'{"messages": [{"role": "user", "content": "hi"}]}', 400),
        ("/api/chat", b'{"model": 7}', 400),
        ("/api/chat", b'{"model": "M", "messages": "hi"}', 400),
        ("/api/chat", b'{"model": "M", "messages": ["hi"]}', 400),
        ("/api/chat", b'{"model": "M", "messages": [{"role": 1, "content": "hi"}]}', 400),
        ("/api/chat", b'{"model": "M", "messages": [{"role": "user", "content": 7}]}', 400),
        ("/api/chat", b'{"model": "M", "messages": [{"role": "user", "content": "hi", "images": ["x"]}]}', 400),
        ("/api/chat", hi('"stream": "yes"'), 400),
        ("/api/chat", hi('"keep_alive": "soon"'), 400),
        ("/api/chat", hi('"keep_alive": [1]'), 400),
        ("/api/chat", hi('"think": true'), 400),
        ("/api/chat", hi('"think": "high"'), 400),
        ("/api/chat", hi('"think": {}'), 400),
        ("/api/chat", hi('"tools": [{}]'), 400),
        ("/api/chat", hi('"format": "xml"'), 400),
        ("/api/chat", hi('"options": []'), 400),
        ("/api/chat", hi('"options": {"seed": "x"}'), 500),
        ("/api/chat", hi('"options": {"seed": NaN}'), 400),
        ("/api/chat", hi('"options": {"stop": 1}'), 500),
        ("/api/chat", hi('"options": {"top_k": true}'), 500),
        ("/api/generate", b'{"model": "M", "prompt": 1}', 400),
        ("/api/generate", b'{"model": "M", "prompt": "def", "suffix": "end"}', 400),
        ("/api/generate", b'{"model": "M", "prompt": "hi", "context": ["x"]}', 400),
        ("/api/generate", b'{"model": "M", "prompt": "hi", "context": [99999999]}', 400),
        ("/api/show", b"{}", 400),
        ("/v1/chat/completions", b'{"model": ', 400),
        ("/v1/chat/completions", b'{"model": "M", "messages": []}', 400),
        ("/v1/chat/completions", hi('"stop": 1'), 500),
        ("/v1/chat/completions", b'{"model": "M", "messages": [{"content": [{"type": "image_url"}]}]}', 400),
        ("/api/chat", b'{"model": "nosuch:1b", "messages": [{"role": "user", "content": "hi"}]}', 404),
        ("/api/generate", b'{"model": "nosuch:1b", "prompt": "hi"}', 404),
        ("/api/show", b'{"model": "nosuch:1b"}', 404),
        ("/v1/chat/completions", b'{"model": "nosuch:1b", "messages": [{"role": "user", "content": "hi"}]}', 404),
        ("/api/nope", b"{}", 404),
        ("/v1/models", b"{}", 405),
    ],
)  # fmt: skip
def test_what_cannot_be_answered(engine: Engine, http: httpx.Client, path: str, content: bytes, status: int) -> None:
    response = http.post(path, content=content.replace(b'"M"', b'"%s"' % engine.model.encode()))
    assert response.status_code == status
    if path in ("/api/nope", "/v1/models"):
        assert response.headers["content-type"] == "text/plain"
        return
    assert "\n" not in error_of(response) and "Traceback" not in response.text
    if path.startswith("/v1/"):
        kind = {400: "invalid_request_error", 404: "not_found_error", 500: "api_error"}[status]
        assert {**response.json()["error"], "message": ""} == {"message": "", "type": kind, "param": None, "code": None}
    if status == 404:
        assert error_of(response) == "model 'nosuch:1b' not found"
    if b'"think"' in content and b"{}" not in content:
        assert error_of(response) == f'"{engine.model}" does not support thinking'


def test_think_false_and_unknown_keys_are_no_error(engine: Engine, http: httpx.Client) -> None:
    options: dict[str, Any] = {"num_predict": 1, "nonsense": 1, "seed": None, "num_gpu": 0, "stop": []}
    body = {"model": engine.model, "messages": COLOURS, "think": False, "shiny": 1, "options": options}
    response = http.post("/api/chat", json=body)
    assert response.status_code == 200


def test_an_unknown_role_is_rendered_as_it_is(engine: Engine, http: httpx.Client) -> None:
    body = {"model": engine.model, "messages": [{"role": "banana", "content": "hi"}], "stream": False}
    assert http.post("/api/chat", json={**body, "options": {"num_predict": 1}}).json()["prompt_eval_count"] == 11


def test_what_the_engine_says_of_itself(engine: Engine, http: httpx.Client) -> None:
    for path in ("/", "/api/version", "/api/tags"):
        assert http.head(path).status_code == 200
    assert http.get("/").text == "Ollama is running"
    assert "llmlab" in http.get("/api/version").json()["version"]
    (tag,) = http.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == engine.model == "smollm2:135m"
    assert tag["digest"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (tag["size"], tag["capabilities"]) == (98_362_432, ["completion"])
    assert tag["details"]["context_length"] == 8192
    shown = http.post("/api/show", json={"model": engine.model}).json()
    assert shown["capabilities"] == ["completion"]
    assert shown["model_info"]["llama.context_length"] == 8192
    assert shown["model_info"]["general.parameter_count"] == 134_515_008
    assert shown["details"] | {"context_length": 8192, "embedding_length": 576} == tag["details"]
    assert "<|im_start|>" in shown["template"]
    entry = http.get(f"/v1/models/{engine.model}").json()
    assert http.get("/v1/models").json() == {"object": "list", "data": [entry]}
    assert http.get("/v1/models/nosuch").status_code == 404


def test_openai_wire(engine: Engine, http: httpx.Client) -> None:
    body = {"model": engine.model, "messages": COLOURS, "max_tokens": 3, "temperature": 0}
    whole = http.post("/v1/chat/completions", json=body).json()
    assert whole["choices"][0]["finish_reason"] == "length"
    assert {**whole["usage"], "prompt_tokens_details": 0} == {
        "prompt_tokens": 14,
        "completion_tokens": 3,
        "total_tokens": 17,
        "prompt_tokens_details": 0,
    }
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    response = http.post("/v1/chat/completions", json=streaming)
    assert response.headers["content-type"] == "text/event-stream"
    *events, last = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
    assert last == "[DONE]"
    *pieces, finish, usage = [json.loads(event) for event in events]
    assert "".join(p["choices"][0]["delta"]["content"] for p in pieces) == whole["choices"][0]["message"]["content"]
    assert pieces[0]["choices"][0]["delta"]["role"] == "assistant" and finish["choices"][0]["delta"] == {}
    assert (usage["choices"], usage["usage"]["prompt_tokens_details"]) == ([], {"cached_tokens": 13})
    assert "usage" not in http.post("/v1/chat/completions", json={**body, "stream": True}).text


def test_parts_of_text_are_joined(engine: Engine, http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "Name three primary"}, {"type": "text", "text": "colours."}]
    counts = []
    for content in (parts, "Name three primary\ncolours."):
        body = {"model": engine.model, "messages": [{"role": "user", "content": content}], "max_completion_tokens": 1}
        counts.append(http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])
    assert counts == [16, 16]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: gateway.example.com", 403),
        ("Host: gateway.example.com:11434", 403),
        ("Host: localhost.example.com", 403),
        ("Host: localhost:9999", 200),
        ("Host: lab.localhost", 200),
        ("Host: [::1]:11434", 200),
        ("Host: 127.0.0.1\r\nOrigin: http://evil.example", 403),
        ("Host: 127.0.0.1\r\nOrigin: null", 403),
        ("Host: 127.0.0.1\r\nOrigin: http://192.168.1.7", 403),
        ("Host: 127.0.0.1\r\nOrigin: http://localhost:3000", 200),
        ("Host: 127.0.0.1\r\nOrigin: http://[", 403),
    ],
)
def test_foreign_hosts_and_origins_are_refused(engine: Engine, headers: str, status: int) -> None:
    host, port = engine.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(f"GET /api/tags HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert (body == "") == (status == 403)
    allowed = [line for line in head.lower().split("\r\n") if line.startswith("access-control-allow-origin")]
    assert allowed == (["access-control-allow-origin: http://localhost:3000"] if "localhost:3000" in headers else [])


def test_a_local_page_may_ask_first(http: httpx.Client) -> None:
    page = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    answer = http.options("/api/chat", headers=page)
    assert answer.status_code == 204 and answer.headers["access-control-allow-origin"] == page["origin"]
    assert http.options("/api/chat", headers={**page, "origin": "http://evil.example"}).status_code == 403


def test_the_official_ollama_client(engine: Engine) -> None:
    client = ollama.Client(host=engine.url)
    options = {"num_predict": 3, "temperature": 0}
    whole = client.chat(model=engine.model, messages=COLOURS, options=options)
    assert (whole.done_reason, whole.prompt_eval_count, whole.eval_count) == ("length", 14, 3)
    pieces = list(client.chat(model=engine.model, messages=COLOURS, options=options, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert client.generate(model=engine.model, prompt="hi", options=options).prompt_eval_count == 10
    assert [model.model for model in client.list().models] == [engine.model]
    assert client.ps().models[0].context_length == 1024
    assert client.show(engine.model).capabilities == ["completion"]
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model="nosuch:1b", messages=COLOURS)
    assert caught.value.status_code == 404


def test_the_official_openai_client(engine: Engine) -> None:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0) as client:
        messages: Any = COLOURS
        asked: dict[str, Any] = {"model": engine.model, "messages": messages, "max_tokens": 3, "temperature": 0}
        whole = client.chat.completions.create(**asked)
        assert whole.choices[0].finish_reason == "length" and whole.usage and whole.usage.prompt_tokens == 14
        with client.chat.completions.create(**asked, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        assert [model.id for model in client.models.list()] == [engine.model]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**asked, "model": "nosuch:1b"})


def test_the_real_model_is_asked_by_one_process_alone(request: pytest.FixtureRequest) -> None:
    """Other tests of this file change what is loaded and look at it: side by side they would disturb each other."""
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@engine")


def shape(value: Any) -> Any:
    """The keys and types of an answer; the cached count, which the recorded servers did not have yet, left out."""
    if isinstance(value, dict):
        own = ("prompt_eval_cached_count", "prompt_tokens_details", "general.name")
        return {key: shape(item) for key, item in value.items() if key not in own}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def parsed(body: str) -> list[Any]:
    found = [line.removeprefix("data: ") for line in body.split("\n") if line.strip()]
    return [json.loads(line) if line[0] in "{[" and line != "[DONE]" else line for line in found]


def figures(last: Any) -> Any:
    kept = ("done", "done_reason", "prompt_eval_count", "eval_count", "context_length")
    return {key: last[key] for key in kept if key in last} if isinstance(last, dict) else last


RECORDED = """
02_warm 05a_unknown_chat 05b_unknown_generate 05c_unknown_show 05d_unknown_openai 05e_no_model 06a_malformed
06b_malformed2 06c_empty_body 06d_wrong_type 06e_empty_messages 06f_no_messages_key 06g_generate_empty_prompt
06h_openai_malformed 06i_openai_empty_messages 06j_bad_option_type
06m_unknown_path 06n_get_chat 06o_root 07a_num_predict5 07c_num_predict1 07e_generate_num_predict5
09b_generate_stream_false 09c_generate_stream 10_show 10_version 11a_ctx_16384,11b_ps_after
12a_openai_stream_usage 12b_openai_stream_nousage 12c_openai_nostream 16a_keep_alive_0,16b_ps 16c_keep_alive_-1
"""


@pytest.mark.parametrize("names", RECORDED.split())
def test_answers_are_those_of_a_recorded_ollama(http: httpx.Client, names: str) -> None:
    if not captures():
        pytest.skip("the recordings are not at hand")
    for name in names.split(","):
        check_recorded(http, captures()[name])


def check_recorded(http: httpx.Client, recorded: dict[str, Any]) -> None:
    method, path = recorded["request"].split(" ")
    answer = http.request(method, path, content=recorded["request_body"] or None)
    assert f"{answer.status_code} {answer.reason_phrase}" == recorded["status"]
    ours, theirs = parsed(answer.text), parsed(recorded["body"])
    assert [shape(ours[0]), shape(ours[-1])] == [shape(theirs[0]), shape(theirs[-1])]
    assert figures(ours[-1]) == figures(theirs[-1])
    kind = answer.headers["content-type"].removesuffix("; charset=utf-8")
    assert kind == recorded["headers"]["Content-Type"].removesuffix("; charset=utf-8")
