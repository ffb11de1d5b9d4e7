"""The engine answers as Ollama does: counts, overflow, windows, queue, stats."""

import asyncio
import hashlib
import json
from typing import Any

import httpx
import pytest
from engine_captures import LONG, ONE_LONG, captures, conversation, harbour, user
from engine_fixture import engine

from llmlab.engine import Engine

__all__ = ["engine"]
pytestmark = pytest.mark.engine

COLOURS = [user("Name three primary colours.")]
DRAGON = [user("Write a very long story about a dragon, at least 2000 words.")]
# Fills most of a window of 256.
FILLING = [user(harbour(0, 7) + " Go on with this story for a long time.")]


class Asker:
    """Requests to the engine over a real socket."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.http = httpx.Client(base_url=engine.url, trust_env=False, timeout=60)

    def post(self, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
        return self.http.post(path, json={"model": self.engine.model, **body}, **more)

    def chat(self, messages: list[dict[str, Any]], num_predict: int = 1, **more: Any) -> httpx.Response:
        options = {"temperature": 0, "seed": 7, "num_predict": num_predict, **more.pop("options", {})}
        return self.post("/api/chat", {"messages": messages, "stream": False, "options": options, **more})

    def loaded(self) -> dict[str, Any]:
        (model,) = self.http.get("/api/ps").json()["models"]
        return dict(model)


@pytest.fixture
def ask(engine: Engine) -> Any:
    asker = Asker(engine)
    with asker.http:
        yield asker


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.content.split(b"\n") if line]


def test_the_harbour_is_the_one_of_the_recordings() -> None:
    recorded = captures()
    harbours = {
        "02a_long_first": (LONG, "2ce809331efeb98c"),
        "03a_overflow": (conversation(), "9263aafe293df4e9"),
        "03f_single_long": (ONE_LONG, "b1e4813093b348c2"),
    }
    for name, (messages, digest) in harbours.items():
        assert hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16] == digest
        if recorded:  # they are not part of the project
            assert json.loads(recorded[name]["request_body"])["messages"] == messages


def test_a_stream_and_its_figures(ask: Asker) -> None:
    response = ask.chat(COLOURS, 5, stream=True)
    assert response.headers["content-type"] == "application/x-ndjson"
    *pieces, done = lines(response)
    assert [list(piece) for piece in pieces] == [["model", "created_at", "message", "done"]] * 5
    assert all(piece["message"]["content"] and not piece["done"] for piece in pieces)
    assert done["message"] == {"role": "assistant", "content": ""}
    assert (done["done"], done["done_reason"]) == (True, "length")
    assert (done["prompt_eval_count"], done["eval_count"]) == (14, 5)
    assert 0 < done["load_duration"] + done["prompt_eval_duration"] + done["eval_duration"] <= done["total_duration"]


def test_the_same_prompt_again_is_cached(ask: Asker) -> None:
    messages = [user("Count the barges that wait outside of the harbour at Lindum for eleven days.")]
    first, second = ask.chat(messages).json(), ask.chat(messages).json()
    assert first["prompt_eval_cached_count"] < 10
    assert second["prompt_eval_cached_count"] == first["prompt_eval_count"] - 1
    assert second["prompt_eval_count"] == first["prompt_eval_count"]
    assert second["message"] == first["message"]
    assert second["eval_duration"] == 1000  # one token takes no time of its own, as with Ollama


@pytest.mark.parametrize(("messages", "tokens"), [(LONG, 1458), (conversation(), 1726), (ONE_LONG, 1327)])
def test_truncate_false_refuses_with_the_counts(ask: Asker, messages: list[dict[str, Any]], tokens: int) -> None:
    response = ask.chat(messages, truncate=False, options={"num_ctx": 512})
    assert response.status_code == 400
    inner = json.loads(response.json()["error"])["error"]
    assert (inner["n_prompt_tokens"], inner["n_ctx"]) == (tokens, 512)
    assert inner["type"] == "exceed_context_size_error"
    if tokens == 1726 and (recorded := captures()):
        assert response.json() == json.loads(recorded["03b_truncate_false"]["body"])


def test_overflow_drops_whole_messages_and_says_nothing(ask: Asker) -> None:
    answer = ask.chat(conversation(), options={"num_ctx": 512}).json()
    assert (answer["done_reason"], answer["prompt_eval_count"]) == ("length", 478)


def test_one_message_that_is_too_long_is_cut_to_half(ask: Asker) -> None:
    answer = ask.chat(ONE_LONG, options={"num_ctx": 512}).json()
    assert (answer["done_reason"], answer["prompt_eval_count"]) == ("length", 258)
    body = {"prompt": ONE_LONG[0]["content"], "stream": False, "options": {"num_ctx": 512, "num_predict": 1}}
    generated = ask.post("/api/generate", body).json()
    assert generated["prompt_eval_count"] == 258
    assert len(generated["context"]) == 1327 + 1


def test_shift_false_ends_with_the_window(ask: Asker) -> None:
    refused = ask.chat(ONE_LONG, shift=False, options={"num_ctx": 512})
    assert refused.status_code == 400 and "longer than the context length" in refused.json()["error"]
    answer = ask.chat(FILLING, 600, shift=False, options={"num_ctx": 256}).json()
    assert answer["prompt_eval_count"] + answer["eval_count"] == 256
    assert answer["done_reason"] == "length"


def test_an_answer_goes_on_past_the_window(ask: Asker) -> None:
    answer = ask.chat(FILLING, 80, options={"num_ctx": 256}).json()
    assert answer["prompt_eval_count"] + answer["eval_count"] > 256
    assert (answer["eval_count"], answer["done_reason"]) == (80, "length")


def test_a_change_of_window_loads_anew_and_is_shown(ask: Asker) -> None:
    ask.chat(COLOURS, options={"num_ctx": 512})
    reloaded = ask.chat(COLOURS, options={"num_ctx": 300 + 256}).json()
    assert ask.loaded()["context_length"] == 768
    again = ask.chat(COLOURS, options={"num_ctx": 700}).json()
    assert reloaded["prompt_eval_cached_count"] == 0 and again["prompt_eval_cached_count"] == 13
    assert ask.chat(COLOURS).status_code == 200
    assert ask.loaded()["context_length"] == 1024  # the engine's own, for requests that name none


@pytest.mark.parametrize(("asked", "loaded"), [(1, 256), (0, 256), (-5, 256), (10**9, 8192)])
def test_odd_windows(ask: Asker, asked: int, loaded: int) -> None:
    assert ask.chat(COLOURS, options={"num_ctx": asked}).json()["done_reason"] == "length"
    model = ask.loaded()
    assert model["context_length"] == loaded
    assert model["size"] == 98_362_432 + 2 * loaded * 23_040
    assert model["size_vram"] in (0, model["size"])


def test_no_messages_load_and_keep_alive_0_unloads(ask: Asker) -> None:
    unloaded = ask.post("/api/chat", {"messages": [], "keep_alive": 0}).json()
    assert (unloaded["done"], unloaded["done_reason"]) == (True, "unload")
    assert ask.http.get("/api/ps").json() == {"models": []}
    for path in ("/api/chat", "/api/generate"):
        loaded = ask.post(path, {}).json()
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")
        assert "total_duration" not in loaded and "eval_count" not in loaded
    assert ask.loaded()["context_length"] == 1024


def test_keep_alive_0_after_an_answer_unloads(ask: Asker) -> None:
    assert ask.chat(COLOURS, keep_alive=0).json()["done_reason"] == "length"
    assert ask.http.get("/api/ps").json() == {"models": []}
    assert ask.chat(COLOURS, keep_alive=-1).json()["load_duration"] > 10_000_000
    assert ask.loaded()["expires_at"].startswith("23")
    assert ask.chat(COLOURS, keep_alive="1h30m").status_code == 200
    assert ask.loaded()["expires_at"].startswith("20")


def test_stop_and_format(ask: Asker) -> None:
    stopped = ask.chat(COLOURS, 40, options={"stop": ["1"]}).json()
    assert (stopped["done_reason"], stopped["message"]["content"]) == ("stop", "")
    number = {"type": "integer", "maximum": 99, "minimum": 0}
    schema = {"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": False}
    formed = ask.chat([user("Give me a number as JSON.")], 40, format=schema).json()
    assert isinstance(json.loads(formed["message"]["content"])["n"], int)
    options = {"num_predict": 40, "temperature": 0}
    raw = {"prompt": "A number:", "raw": True, "stream": False, "format": schema, "options": options}
    assert isinstance(json.loads(ask.post("/api/generate", raw).json()["response"])["n"], int)


def test_generate_goes_on_from_its_context(ask: Asker) -> None:
    body = {"prompt": "hi", "stream": False, "options": {"num_predict": 2, "temperature": 0}}
    first = ask.post("/api/generate", body).json()
    assert (first["prompt_eval_count"], len(first["context"])) == (10, 12)
    second = ask.post("/api/generate", {**body, "context": first["context"]}).json()
    assert second["prompt_eval_count"] == 12 + 10
    assert second["context"][:12] == first["context"]


def test_half_a_surrogate_pair_is_no_error(ask: Asker) -> None:
    content = b'{"model":"%s","messages":[{"role":"user","content":"a\\ud800b"}],"options":{"num_predict":1}}'
    response = ask.http.post("/api/chat", content=content % ask.engine.model.encode())
    assert response.status_code == 200 and lines(response)[-1]["done"]


async def test_a_full_queue_refuses_at_once_while_the_model_must_be_loaded(engine: Engine) -> None:
    """One answer holds the model, so that a request for another window must wait: it and two more, no others."""
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=60) as http:

        def body(num_ctx: int, num_predict: int) -> dict[str, Any]:
            options = {"num_ctx": num_ctx, "num_predict": num_predict, "temperature": 0}
            return {"model": engine.model, "messages": DRAGON, "options": options}

        async with http.stream("POST", "/api/chat", json=body(1024, 10_000)) as held:
            await anext(held.aiter_raw())
            calls = [asyncio.create_task(http.post("/api/chat", json=body(512, 1))) for _ in range(6)]
            done: set[asyncio.Task[httpx.Response]] = set()
            while len(done) < 3:
                finished, _ = await asyncio.wait(set(calls) - done, return_when=asyncio.FIRST_COMPLETED)
                done |= finished
            assert [call.result().status_code for call in done] == [503, 503, 503]
            assert next(iter(done)).result().json() == {
                "error": "server busy, please try again.  maximum pending requests exceeded"
            }
        served = await asyncio.gather(*calls)
        assert sorted(response.status_code for response in served) == [200, 200, 200, 503, 503, 503]
        waits = [lines(r)[-1]["load_duration"] for r in served if r.status_code == 200]
        assert min(waits) > 10_000_000
