"""/metrics tells Prometheus what was done, and /healthz that somebody is there."""

from prometheus_client.parser import text_string_to_metric_families

from llmlab.fake import FakeServer, Figures
from tests.serving import asking, serving

BODY = {"model": "fake:1b", "messages": [{"role": "user", "content": "hi"}]}


async def test_calls_tokens_and_times_are_counted_by_path_and_outcome():
    figures = Figures(decode_gap_ns=5_000_000, stop_after=12, prefill_tokens_per_s=10_000, faults={1: "refuse"})
    with FakeServer(figures) as fake:
        async with serving(fake.url) as service, asking(service) as client:
            await client.post("/chat", json={"message": "hi"})
            await client.post("/api/chat", json=BODY)
            await client.post(
                "/v1/chat/completions", json={**BODY, "stream_options": {"include_usage": True}, "stream": True}
            )
            response = await client.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            found = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families(response.text)
                for sample in family.samples
            }
            assert found["llmlab_calls_total", "/chat", "ok"] == 1
            assert found["llmlab_calls_total", "/api/chat", "error"] == 1
            assert found["llmlab_calls_total", "/v1/chat/completions", "ok"] == 1
            done = [call for call in fake.served if call.status == 200]
            assert found["llmlab_output_tokens_total",] == sum(call.output_tokens for call in done)
            assert found["llmlab_prompt_tokens_total",] == sum(call.read_tokens for call in done)
            assert found["llmlab_ttft_seconds_count", "/chat"] == 1
            assert found["llmlab_calls_running",] == 0


async def test_no_label_holds_what_a_client_chose(fake):
    async with serving(fake.url) as service, asking(service) as client:
        await client.post("/api/chat", json={**BODY, "model": "chosen-by-client"})
        await client.get("/api/chosen-by-client")
        assert "chosen-by-client" not in (await client.get("/metrics")).text


async def test_health_names_the_model(fake):
    async with serving(fake.url) as service, asking(service) as client:
        assert (await client.get("/healthz")).json()["model"] == fake.model
