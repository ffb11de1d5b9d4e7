"""The server from its first line to its last: starting, stopping by signal, and nothing left behind."""

import asyncio
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llmlab.fake import FakeServer, Figures
from tests.serving import RawClient, asking, serving, until

ENDLESS = Figures(decode_gap_ns=10_000_000, fault="endless", slots=8)


@contextmanager
def started(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`llmlab serve` as a process of its own, and where it listens."""
    command = [sys.executable, "-m", "llmlab", "serve", "--port", "0", *args]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            first = process.stderr.readline()
            url = next((word for word in first.split() if word.startswith("http://") and word != args[1]), "")
            yield process, url
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code", "path"),
    [(signal.SIGINT, 130, "/chat"), (signal.SIGTERM, 0, "/api/chat"), (signal.SIGINT, 130, None)],
)
async def test_a_signal_ends_it_within_seconds_whatever_streams(number, code, path, rows):
    with FakeServer(ENDLESS) as fake, started("--host", fake.url) as (process, url):
        client = await RawClient.connect(url)
        if path is not None:
            messages = [{"role": "user", "content": "go on for ever"}]
            await client.post(path, {"model": fake.model, "messages": messages})
            await client.until(b"The")
        process.send_signal(number)
        asked = time.monotonic()
        rest = await client.rest()
        assert await asyncio.to_thread(process.wait, 10) == code
        assert time.monotonic() - asked < 6
        if path == "/chat":
            assert b"event: error" in rest
            assert rest.endswith(b"0\r\n\r\n")
        elif path is not None:
            assert not rest.endswith(b"0\r\n\r\n")
        socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))).close()
        outcomes = [row["outcome"] for row in rows("select outcome from calls")]
        assert outcomes == (["cancelled"] if path else [])
        assert [row["outcome"] for row in rows("select outcome from runs")] == ["ok"]
        await until(lambda: all(served.done_ns for served in fake.served))


async def test_a_second_signal_does_not_wait():
    with FakeServer(ENDLESS) as fake:
        async with serving(fake.url, grace_s=10_000) as service:
            client = await RawClient.connect(service.url)
            await client.post("/chat", {"message": "go on for ever"})
            await client.until(b"The")
            service.signalled(signal.SIGINT)
            await client.until(b"}")
            service.signalled(signal.SIGINT)
            await service.ended()
            assert service.signal == signal.SIGINT


async def test_what_can_finish_in_time_is_finished():
    with FakeServer(Figures(decode_gap_ns=5_000_000, stop_after=20)) as fake:
        async with serving(fake.url, grace_s=10_000) as service:
            client = await RawClient.connect(service.url)
            await client.post("/chat", {"message": "hi"})
            await client.until(b"The")
            service.stop()
            assert b"event: stats" in await client.rest()
            await service.ended()


def test_it_says_where_it_is(fake):
    with started("--host", fake.url) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        lines = process.stderr.read()
        assert f"OLLAMA_HOST={url}" in lines
        assert "Traceback" not in lines


def test_a_port_that_is_taken_is_a_usage_error(lab, fake):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = lab("serve", "--host", fake.url, "--port", str(taken.getsockname()[1]))
        assert result.exit_code == 2
        assert "is taken" in result.stderr
        assert result.stderr.count("\n") == 1


def test_listening_for_others_without_a_key_does_not_start(lab, fake):
    result = lab("serve", "--host", fake.url, "--bind", "0.0.0.0", "--port", "0")
    assert result.exit_code == 2
    assert "LLMLAB_SERVE_KEY" in result.stderr
    assert fake.requests == []


def test_without_a_server_it_does_not_start(lab):
    result = lab("serve", "--host", "127.0.0.1:1", "--port", "0")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1


PATHS = ["/chat", "/api/chat", "/v1/chat/completions"]


async def test_two_hundred_clients_that_leave_at_any_moment_leave_nothing_behind(rows):
    figures = Figures(decode_gap_ns=10_000_000, prefill_tokens_per_s=100.0, fault="endless", slots=64)
    with FakeServer(figures) as fake:
        async with serving(fake.url) as service:
            chance = random.Random(7)
            left = await asyncio.gather(*(come_and_leave(service, fake.model, chance, n) for n in range(200)))
            last_ns = max(left)
            await until(lambda: not len(service.attendance))
            await until(lambda: all(served.done_ns for served in fake.served))
            late = [served.done_ns - last_ns for served in fake.served]
            assert max(late) < 1_000_000_000
            assert service.gate.running == service.gate.waiting == service.target.client.in_flight == 0
            await until(lambda: not service._server.server_state.connections)
            await until(lambda: not service._server.server_state.tasks)
            others = [
                t for t in asyncio.all_tasks() if t not in (asyncio.current_task(), service._serving, service._watching)
            ]
            await service.ledger.settle()
            assert not [task for task in others if not task.done()]
            await service.store.saved()
            found = rows("select outcome, count(*) n from calls group by outcome")
            assert {row["outcome"] for row in found} == {"cancelled"}
            assert found[0]["n"] == len(fake.served)


async def come_and_leave(service, model, chance, number) -> int:
    """Ask, and leave at some moment of the request or the answer; when that was, on the fake's clock."""
    path, moment = PATHS[number % 3], chance.random()
    client = await RawClient.connect(service.url)
    body = {"model": model, "messages": [{"role": "user", "content": "long " * chance.randrange(1, 40)}]}
    await client.post(path, body | ({"stream": True} if path.startswith("/v1") else {}))
    await asyncio.sleep(moment * 0.3)
    client.leave()
    return time.perf_counter_ns()


async def test_two_servers_may_run_after_each_other_and_beside_each_other(fake):
    for _ in range(2):
        async with serving(fake.url) as one, serving(fake.url) as other, asking(one) as a, asking(other) as b:
            for client in (a, b):
                assert "event: stats" in (await client.post("/chat", json={"message": "hi", "num_predict": 2})).text
