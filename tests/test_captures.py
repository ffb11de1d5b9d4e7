"""What real servers answered goes through the wires and the client to the right text, counts and outcome.

The records are read from the folder that LLMLAB_CAPTURES names, or `../shared/captures` beside the repository. Retold
records of the same shapes are always tested, so that this module checks something where the folder is not there.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import Clock, chat, server_at

from llmlab.call import Label
from llmlab.client import Client, overflow_counts
from llmlab.client.ollama import OllamaWire
from llmlab.client.openai import OpenAIWire
from llmlab.client.record import Record
from llmlab.errors import ServerError
from llmlab.messages import Message

FOLDER = Path(os.environ.get("LLMLAB_CAPTURES") or Path(__file__).parents[2] / "shared" / "captures")
CHATS = ("/api/chat", "/api/generate", "/v1/chat/completions")


@dataclass(frozen=True)
class Capture:
    name: str
    path: str
    request: str
    status: int
    kind: str
    body: bytes

    @property
    def openai(self) -> bool:
        return self.path.startswith("/v1/")

    @property
    def wire(self) -> OllamaWire | OpenAIWire:
        return OpenAIWire() if self.openai else OllamaWire()


def read(source: str, line: bytes) -> Capture | None:
    """A record of one HTTP exchange; other records (raw sockets, notes) are None."""
    data = json.loads(line)
    method, _, path = data["request"].partition(" ")
    status = str(data["status"])
    if method not in ("GET", "POST") or not status[:3].isdigit():
        return None
    headers = {name.lower(): value for name, value in data["headers"].items()}
    name = f"{source}:{data['name']}"
    kind = headers.get("content-type", "")
    return Capture(name, path, data["request_body"] or "", int(status[:3]), kind, data["body"].encode())


def captures() -> Iterator[Capture]:
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            capture = read(path.stem, line) if line else None
            if capture is not None:
                yield capture


def retold() -> Iterator[Capture]:
    """Records of the same shapes, in our own words."""
    ndjson, text = "application/x-ndjson", "application/json; charset=utf-8"
    word = {"model": "m", "message": {"role": "assistant", "content": "Red"}, "done": False}
    end = {**word, "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
    end |= {"total_duration": 9, "load_duration": 2, "prompt_eval_count": 14, "prompt_eval_duration": 3}
    end |= {"eval_count": 2, "eval_duration": 1000}
    whole = {**end, "message": {"role": "assistant", "content": "Red."}}
    part = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Red"}, "finish_reason": None}]}
    last = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 20, "total_tokens": 34}}
    refused = {"error": {"code": 400, "message": "too long", "n_prompt_tokens": 1726, "n_ctx": 512}}
    details = {"family": "llama", "quantization_level": "Q4_1"}
    tags = [
        {"name": f"{name}:135m", "digest": f"sha256:{digit * 64}", "modified_at": when, "details": details}
        for name, digit, when in (
            ("smollm2", "a", "2026-01-02T03:04:05Z"),
            ("smollm2-tmpl", "b", "2026-02-02T03:04:05Z"),
        )
    ]
    loaded = {"models": [{"name": "smollm2:135m", "context_length": 512, "size_vram": 0}]}
    show = {"details": details, "model_info": {"llama.context_length": 8192}, "capabilities": ["completion"]}
    asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    for name, path, status, kind, values in (
        ("stream", "/api/chat", 200, ndjson, [word, end]),
        ("whole", "/api/chat", 200, text, [whole]),
        ("generate", "/api/generate", 200, ndjson, [{"response": "Red", "done": False}, {**end, "response": ""}]),
        ("never_done", "/api/chat", 200, ndjson, [word, word]),
        ("runner_died", "/api/chat", 200, ndjson, [word, {"error": "the runner is gone"}]),
        ("load", "/api/chat", 200, text, [{**word, "message": {}, "done": True, "done_reason": "load"}]),
        ("too_long", "/api/chat", 400, text, [{"error": json.dumps(refused)}]),
        ("busy", "/api/chat", 503, text, [{"error": "busy"}]),
        ("version", "/api/version", 200, text, [{"version": "0.1.2"}]),
        ("ps", "/api/ps", 200, text, [loaded]),
        ("tags", "/api/tags", 200, text, [{"models": tags}]),
        ("show", "/api/show", 200, text, [show]),
        ("unknown", "/v1/chat/completions", 404, text, [{"error": {"message": "no such model"}}]),
    ):
        yield Capture(
            f"retold:{name}", path, asked, status, kind, b"".join(json.dumps(v).encode() + b"\n" for v in values)
        )
    events = b"".join(b"data: " + json.dumps(v).encode() + b"\n\n" for v in (part, last, usage)) + b"data: [DONE]\n\n"
    yield Capture("retold:events", "/v1/chat/completions", asked, 200, "text/event-stream", events)


RECORDS = [*retold(), *captures()]
ANSWERS = [record for record in RECORDS if record.path in CHATS and record.status == 200]
REFUSALS = [record for record in RECORDS if record.path in CHATS and record.status != 200]


def names(records: list[Capture]) -> list[str]:
    return [record.name for record in records]


@dataclass
class Expected:
    """What a body says, read the plain way."""

    text: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    decode_ns: int | None = None
    done_reason: str | None = None
    outcome: str = "incomplete"


def expected(capture: Capture) -> Expected:
    result = Expected()
    for line in capture.body.decode().split("\n"):
        text = line.removeprefix("data: ")
        if text == "[DONE]":
            result.outcome = "ok"
        elif text:
            (read_openai if capture.openai else read_ollama)(json.loads(text), result)
    if result.done_reason in ("load", "unload"):
        result.outcome = "error"
    return result


def read_ollama(value: dict[str, Any], result: Expected) -> None:
    result.text += value.get("message", {}).get("content", "") or value.get("response", "")
    if "error" in value:
        result.outcome = "error"
    elif value.get("done"):
        result.outcome = "ok"
        result.done_reason = value.get("done_reason")
        result.prompt_tokens, result.output_tokens = value.get("prompt_eval_count"), value.get("eval_count")
        result.decode_ns = value.get("eval_duration")


def read_openai(value: dict[str, Any], result: Expected) -> None:
    for choice in value["choices"]:
        result.text += (choice.get("delta") or choice.get("message") or {}).get("content", "")
        result.done_reason = choice["finish_reason"] or result.done_reason
        if "message" in choice:
            result.outcome = "ok"
    if "usage" in value:
        result.prompt_tokens = value["usage"]["prompt_tokens"]
        result.output_tokens = value["usage"]["completion_tokens"]


def test_the_folder_was_read() -> None:
    assert len(RECORDS) >= (200 if FOLDER.is_dir() else 10)


@pytest.mark.parametrize("capture", ANSWERS, ids=names(ANSWERS))
def test_wires_read_answers(capture: Capture) -> None:
    wanted = expected(capture)
    for size in (1 << 20, 100, 3):
        check(cut_into(capture, size), wanted)


def cut_into(capture: Capture, size: int) -> Record:
    """The record of an answer that comes in chunks of `size` bytes."""
    record = Record(capture.wire, Label())
    for start in range(0, len(capture.body), size):
        record.feed(start, capture.body[start : start + size])
    record.close_wire(len(capture.body))
    record.close(len(capture.body))
    return record


def check(record: Record, wanted: Expected) -> None:
    done = record.done
    assert record.deltas.text == wanted.text
    assert (record.fault is not None) == (wanted.outcome == "error" and done is None)
    assert (done is not None) == (wanted.outcome != "incomplete" and record.fault is None)
    if done is not None:
        assert (done.prompt_tokens, done.output_tokens) == (wanted.prompt_tokens, wanted.output_tokens)
        assert (done.decode_ns, done.reason) == (wanted.decode_ns, wanted.done_reason)
        assert not done.odd


def replay(capture: Capture) -> httpx.MockTransport:
    """Answers the path of the record with it, and everything else with an empty list of models."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != capture.path:
            return httpx.Response(200, json={"models": [], "data": []})
        return httpx.Response(capture.status, headers={"content-type": capture.kind}, content=capture.body)

    return httpx.MockTransport(answer)


def sent_messages(capture: Capture) -> list[Message]:
    """The messages of the request; one where there were none or the request was broken on purpose."""
    try:
        found = json.loads(capture.request).get("messages")
    except ValueError:
        found = None
    return [Message.from_wire(m) for m in found] if found and isinstance(found, list) else [Message("user", "hi")]


async def run(capture: Capture) -> Any:
    server = server_at(api="openai" if capture.openai else "ollama")
    async with Client(server, transport=replay(capture), clock=Clock()) as client:
        return await chat(client, sent_messages(capture), model="smollm2:135m")


CHAT_ANSWERS = [record for record in ANSWERS if record.path != "/api/generate"]


@pytest.mark.parametrize("capture", CHAT_ANSWERS, ids=names(CHAT_ANSWERS))
async def test_chats_end_as_the_server_meant(capture: Capture) -> None:
    wanted, got = expected(capture), await run(capture)
    assert (got.call.outcome, got.text) == (wanted.outcome, wanted.text)
    assert (got.error is None) == (wanted.outcome == "ok")
    assert (got.call.prompt_tokens, got.call.output_tokens) == (wanted.prompt_tokens, wanted.output_tokens)
    assert got.call.done_reason == wanted.done_reason
    assert got.call.http_status == 200


CHAT_REFUSALS = [record for record in REFUSALS if record.path != "/api/generate"]


@pytest.mark.parametrize("capture", CHAT_REFUSALS, ids=names(CHAT_REFUSALS))
async def test_refusals_keep_status_and_words(capture: Capture) -> None:
    got = await run(capture)
    assert isinstance(got.error, ServerError)
    assert (got.call.outcome, got.call.http_status, got.error.http_status) == ("error", capture.status, capture.status)
    assert got.call.error == str(got.error)
    assert "{" not in got.error.what
    assert got.text == ""


TOO_LONG = [record for record in CHAT_REFUSALS if b"n_prompt_tokens" in record.body]


@pytest.mark.parametrize("capture", TOO_LONG, ids=names(TOO_LONG))
async def test_counts_of_a_refused_prompt_are_found(capture: Capture) -> None:
    error = (await run(capture)).error
    counts = overflow_counts(error)
    assert counts is not None
    assert counts[0] > counts[1] == 512


PAGES = [record for record in RECORDS if record.path in ("/api/ps", "/api/tags", "/v1/models", "/api/version")]


@pytest.mark.parametrize("capture", PAGES, ids=names(PAGES))
async def test_pages_about_the_server_are_read(capture: Capture) -> None:
    server = server_at(api="openai" if capture.openai else "ollama")
    async with Client(server, transport=replay(capture)) as client:
        body = json.loads(capture.body)
        if capture.path == "/api/version":
            facts = await client.server_facts()
            assert (facts.kind, facts.version) == ("ollama", body["version"])
        elif capture.path == "/api/ps":
            loaded = await client.loaded()
            assert [model.num_ctx for model in loaded] == [entry["context_length"] for entry in body["models"]]
            assert all(model.size_vram_bytes == 0 for model in loaded)
        else:
            found = await client.models()
            assert {model.name for model in found} == {"smollm2:135m", "smollm2-tmpl:135m"}
            if capture.path == "/api/tags":
                assert found[0].name == "smollm2-tmpl:135m"
                assert all(len(model.digest or "") == 64 and model.quantization == "Q4_1" for model in found)


SHOWS = [record for record in RECORDS if record.path == "/api/show" and record.status == 200]


@pytest.mark.parametrize("capture", SHOWS, ids=names(SHOWS))
async def test_a_model_is_described(capture: Capture) -> None:
    async with Client(server_at(), transport=replay(capture)) as client:
        model = await client.model("smollm2:135m")
    assert (model.context_length, model.family, model.quantization) == (8192, "llama", "Q4_1")
    assert model.capabilities == ("completion",)
