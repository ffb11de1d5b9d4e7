"""What the client finds out about a server and its models, however odd the JSON."""

import json
from typing import Any

import httpx
import pytest
from asking import chat, server_at
from hypothesis import given, settings
from hypothesis import strategies as st
from played import PlayedServer, answer, done_line, json_answer

from llmlab.client import Client
from llmlab.errors import LabError, ServerError, SilenceTimeout, Unreachable
from llmlab.model import LoadedModel

V1 = "/v1/models"


def pages(**bodies: Any) -> httpx.MockTransport:
    """Answers GET /a/b with `a_b` as JSON (a status where it is a number), anything else with 404."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = bodies.get(request.url.path.strip("/").replace("/", "_"))
        if body is None or isinstance(body, int):
            return httpx.Response(body or 404, text="no")
        return httpx.Response(200, json=body)

    return httpx.MockTransport(answer)


def at(api: str = "auto", **bodies: Any) -> Client:
    return Client(server_at(api=api), transport=pages(**bodies))


LLAMA_SERVER = {
    "v1_models": {"data": [{"id": "q.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 32768, "size": 5}}]},
    "props": {"default_generation_settings": {"n_ctx": 4096}, "build_info": "b6100-abc"},
}
VLLM = {
    "v1_models": {"data": [{"id": "org/m", "owned_by": "vllm", "max_model_len": 8192}]},
    "version": {"version": "0.11"},
}
LM_STUDIO = {
    "v1_models": {"data": [{"id": "a"}, {"id": "b"}]},
    "api_v0_models": {
        "data": [{"id": "a", "state": "loaded", "loaded_context_length": 2048}, {"id": "b", "state": "not-loaded"}]
    },
}
OLLAMA = {"api_version": {"version": "0.32.15"}}


@pytest.mark.parametrize(
    ("bodies", "api", "kind", "version"),
    [
        (OLLAMA, "ollama", "ollama", "0.32.15"),
        ({"api_version": {"version": "0.1.0", "name": "llmlab"}}, "ollama", "llmlab", "0.1.0"),
        (LLAMA_SERVER, "openai", "llama-server", "b6100-abc"),
        (VLLM, "openai", "vllm", "0.11"),
        (LM_STUDIO, "openai", "lmstudio", None),
        ({"v1_models": {"data": []}}, "openai", "openai", None),
        ({"api_version": {"error": "unexpected endpoint"}, "v1_models": {"data": []}}, "openai", "openai", None),
        ({"api_version": {"version": 3}, "v1_models": {"data": []}}, "openai", "openai", None),
    ],
)
async def test_servers_are_told_apart(bodies: dict[str, Any], api: str, kind: str, version: str | None) -> None:
    client = at(**bodies)
    assert await client.api() == api
    facts = await client.server_facts()
    assert (facts.kind, facts.version) == (kind, version)


async def test_ollama_asked_on_its_other_wire_is_still_ollama() -> None:
    assert (await at("openai", **OLLAMA, v1_models={"data": []}).server_facts()).kind == "ollama"


async def test_the_language_is_found_once_and_used() -> None:
    script = [json_answer({"version": "1"}, "GET /api/version"), answer("a", done_line()), answer("b", done_line())]
    async with PlayedServer(script) as server, Client(server_at(server.url, "auto")) as client:
        assert [(await chat(client)).text for _ in range(2)] == ["a", "b"]
        assert [asked.path for asked in server.requests] == ["/api/version", "/api/chat", "/api/chat"]


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ({}, "answers neither like Ollama nor like an OpenAI-compatible server"),
        ({"v1_models": [1]}, "answers neither"),
        ({"api_version": 401}, "answered 401"),
        ({"api_version": 502}, "answered 502"),
        ({"api_version": 301}, "redirects"),
    ],
)
async def test_what_speaks_neither_language_is_told(bodies: dict[str, Any], words: str) -> None:
    client = at(**bodies)
    with pytest.raises(ServerError, match=words):
        await client.api()
    got = await chat(client)
    assert (got.call.outcome, words in str(got.call.error)) == ("error", True)


async def test_nobody_to_ask_is_unreachable() -> None:
    async with Client(server_at("http://127.0.0.1:9", "auto")) as client:
        for question in (client.api, client.models, client.loaded, client.server_facts):
            with pytest.raises(Unreachable):
                await question()


async def test_a_silent_server_is_no_other_kind_of_server() -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("")

    async with Client(server_at(api="auto"), transport=httpx.MockTransport(silent), timeout_s=7) as client:
        with pytest.raises(SilenceTimeout, match="no data for 7 s"):
            await client.api()


async def test_models_come_newest_first_whatever_the_zone() -> None:
    times = {
        "old": "2026-01-02T03:04:05Z",
        "new": "2026-01-02T03:04:06.123456789-05:00",
        "middle": "2026-01-02T09:04:05+02:00",
        "odd": "yesterday",
        "none": None,
    }
    tags = [{"name": name, "modified_at": when, "digest": f"sha256:{name}", "size": 7} for name, when in times.items()]
    found = await at("ollama", api_tags={"models": tags}).models()
    assert [model.name for model in found][:3] == ["new", "middle", "old"]
    assert {(model.digest, model.size_bytes) for model in found} == {(name, 7) for name in times}


async def test_models_of_the_other_wire() -> None:
    [model] = await at("openai", **LLAMA_SERVER).models()
    assert (model.name, model.context_length, model.size_bytes) == ("q.gguf", 32768, 5)
    data = [{"id": "a", "created": 5}, {"id": "b", "created": 9}, {"id": "c", "created": 10**300}, {"created": 3}]
    assert [model.name for model in await at("openai", v1_models={"data": data}).models()] == ["b", "a", "c"]


async def test_loaded_models_and_their_windows() -> None:
    entry = {"name": "m", "digest": "sha256:d", "size": 9, "size_vram": 0, "context_length": 4096, "expires_at": "t"}
    assert await at("ollama", api_ps={"models": [entry, {"name": "n"}, {}, 5]}).loaded() == [
        LoadedModel(name="m", digest="d", size_bytes=9, size_vram_bytes=0, num_ctx=4096, expires_utc="t"),
        LoadedModel(name="n"),
    ]
    assert await at("openai", **LM_STUDIO).loaded() == [LoadedModel(name="a", num_ctx=2048)]
    assert await at("openai", **LLAMA_SERVER).loaded() == [LoadedModel(name="q.gguf", num_ctx=4096)]
    assert await at("openai", **VLLM).loaded() == [LoadedModel(name="org/m", num_ctx=8192)]
    assert await at("openai", v1_models={"data": [{"id": "a"}]}).loaded() == []


@pytest.mark.parametrize(
    ("bodies", "name", "window"),
    [
        (LLAMA_SERVER, "q.gguf", 4096),
        (VLLM, "org/m", 8192),
        (VLLM, "other", None),
        (LM_STUDIO, "a", 2048),
        (LM_STUDIO, "b", None),
        ({"v1_models": {"data": []}}, "a", None),
    ],
)
async def test_the_window_of_a_server_without_num_ctx(bodies: dict[str, Any], name: str, window: int | None) -> None:
    assert await at("openai", **bodies).window(name) == window


async def test_ollama_has_no_window_of_its_own() -> None:
    assert await at("ollama").window("m") is None


SHOW = {
    "details": {"family": "qwen2", "parameter_size": "3.1B", "quantization_level": "Q4_K_M"},
    "model_info": {"general.architecture": "qwen2", "qwen2.context_length": 32768},
    "capabilities": ["completion", "thinking"],
}


@pytest.mark.parametrize("name", ["qwen", "qwen:latest"])
async def test_a_model_is_described_by_both_its_pages(name: str) -> None:
    tags = {"models": [{"name": "other:1b", "digest": "x"}, {"name": "qwen:latest", "digest": "sha256:d", "size": 9}]}
    model = await at("ollama", api_show=SHOW, api_tags=tags).model(name)
    assert (model.name, model.digest, model.size_bytes, model.context_length) == ("qwen:latest", "d", 9, 32768)
    assert (model.family, model.parameter_size, model.quantization) == ("qwen2", "3.1B", "Q4_K_M")
    assert model.thinks


async def test_a_model_that_is_not_listed_is_described_all_the_same() -> None:
    assert (await at("ollama", api_show=SHOW, api_tags={"models": []}).model("qwen")).context_length == 32768


@pytest.mark.parametrize("api", ["ollama", "openai"])
async def test_an_unknown_model_names_those_there_are(api: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/show":
            return httpx.Response(404, json={"error": "not found"})
        return httpx.Response(200, json={"models": [{"name": "a:1b"}], "data": [{"id": "a:1b"}]})

    client = Client(server_at(api=api), transport=httpx.MockTransport(answer))
    with pytest.raises(ServerError, match="there are: a:1b") as raised:
        await client.model("b:1b")
    assert raised.value.http_status == 404


async def test_an_address_with_a_path_is_kept() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, json={"models": []})

    async with Client(server_at("http://h.example/ollama"), transport=httpx.MockTransport(answer)) as client:
        await client.models()
    assert asked == ["/ollama/api/tags"]


KEYS = st.sampled_from(
    ["models", "data", "name", "model", "id", "digest", "details", "model_info", "size", "modified_at", "created",
     "capabilities", "version", "default_generation_settings", "n_ctx", "meta", "state", "max_model_len", "owned_by"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from(["loaded", "2026-01-02", "9999-12-31T23:59:59-23:59", "a.context_length"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)  # fmt: skip
BODIES = st.one_of(VALUES, st.dictionaries(KEYS, st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=3)))


@settings(max_examples=150, deadline=None)
@given(BODIES, st.sampled_from(["ollama", "openai", "auto"]))
def test_odd_json_never_breaks_a_question(body: Any, api: str) -> None:
    import asyncio

    async def run() -> None:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, content=json.dumps(body).encode()))
        async with Client(server_at(api=api), transport=transport) as client:
            for question in (client.server_facts, client.models, client.loaded):
                try:
                    found = await question()
                except LabError:
                    continue
                assert repr(found).encode()
            for named in (client.model, client.window):
                try:
                    await named("m")
                except LabError:
                    continue

    asyncio.run(run())
