"""The API against its own OpenAPI document: no fault, no status and no body that the document does not tell of."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from llmlab.fake import FakeServer, Figures
from llmlab.serve.events import EVENTS
from tests.serving import asking, bench, events, serving
from tests.threaded import Threaded


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """llmlab in front of a fake, in a thread: schemathesis is not asynchronous."""
    folder: Path = tmp_path_factory.mktemp("openapi")
    figures = Figures(decode_gap_ns=100_000, prefill_tokens_per_s=1_000_000, stop_after=3)
    with FakeServer(figures) as fake, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        with Threaded(fake.url, db=folder / "lab.db") as threaded:
            yield threaded.url


CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


def test_nothing_is_answered_that_the_document_does_not_tell_of(url):
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    names = []
    for result in schema.get_all_operations():
        operation = result.ok()
        names.append(operation.label)
        check(operation)
    assert len(names) == 8


def check(operation: Any) -> None:
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    checks = [*CHECKS, *([negative_data_rejection] if operation.path in ("/chat", "/window") else [])]

    def answered(case: Any) -> None:
        response = case.call(timeout=20)
        assert response.status_code != 500
        case.validate_response(response, checks=checks)

    for mode in modes if operation.body else modes[:1]:
        hypothesis.settings(
            max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True
        )(hypothesis.given(operation.as_strategy(generation_mode=mode))(answered))()


async def test_the_events_are_those_of_the_document(fake):
    async with serving(fake.url) as service, asking(service) as client:
        response = await client.post("/chat", json={"message": "hi", "num_predict": 3})
        models = {name or "message": model for name, model in reversed(EVENTS)}
        found = events(response.text)
        assert {name for name, _ in found} == {"message", "receipt", "stats"}
        for name, data in found:
            models[name].model_validate(data, strict=True)


async def test_the_document_names_what_is_asked_and_answered():
    async with bench() as (_, _, client):
        document = (await client.get("/openapi.json")).json()
        assert set(document["paths"]) == {
            "/chat", "/window", "/healthz", "/metrics", "/info", "/api/chat", "/api/generate", "/v1/chat/completions",
        }  # fmt: skip
        chat = document["paths"]["/chat"]["post"]
        assert set(chat["responses"]["200"]["content"]) == {"text/event-stream"}
        assert "ChatRequest" in json.dumps(chat["requestBody"])
        text = json.dumps(document)
        for name in ("Delta", "Thought", "Receipt", "Stats", "Failure", "ProblemBody", "OllamaError", "OpenAIError"):
            assert name in document["components"]["schemas"]
            assert f"#/components/schemas/{name}" in text
