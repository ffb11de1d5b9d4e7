"""The gate: how many calls run at once, how many wait, and who is sent away."""

import asyncio

import pytest

from llmlab.serve.gate import Full, Gate
from tests.played import answer, done_line
from tests.serving import bench, sent, until


async def test_calls_pass_in_the_order_they_came():
    gate, order = Gate(1, 10), []
    go_on = asyncio.Event()

    async def call(number):
        async with gate.place():
            order.append(number)
            await go_on.wait()

    tasks = [asyncio.create_task(call(number)) for number in range(5)]
    await until(lambda: gate.waiting == 4)
    assert order == [0]
    go_on.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_a_full_queue_says_when_to_come_back():
    gate = Gate(1, 0)
    async with gate.place():
        with pytest.raises(Full) as full:
            async with gate.place():
                raise AssertionError
        assert 0 < full.value.retry_after_s <= 60
    async with gate.place():
        assert gate.running == 1


async def test_who_is_cancelled_while_waiting_gives_up_the_place():
    gate = Gate(1, 1)
    async with gate.place():
        waiting = asyncio.create_task(gate.place().__aenter__())
        await until(lambda: gate.waiting == 1)
        waiting.cancel()
        await until(waiting.done)
        assert gate.waiting == 0
    async with gate.place():
        assert gate.running == 1


BODY = {"model": "demo:1b", "messages": [{"role": "user", "content": "hi"}]}


async def test_the_next_call_after_a_full_queue_is_a_503_in_every_protocol():
    go_on = asyncio.Event()
    script = [answer({"wait": go_on}, "a", done_line()), answer("b", done_line())]
    async with bench(*script, max_parallel=1, max_queue=1) as (upstream, service, client):
        first = asyncio.create_task(client.post("/api/chat", json=BODY))
        await until(lambda: len(sent(upstream)) == 1)
        second = asyncio.create_task(client.post("/chat", json={"message": "hi"}))
        await until(lambda: service.gate.waiting == 1)
        for path, body in (("/chat", {"message": "hi"}), ("/api/chat", BODY), ("/v1/chat/completions", BODY)):
            response = await client.post(path, json=body)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]
        assert len(sent(upstream)) == 1
        go_on.set()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
        assert "llmlab_refused_total" in (await client.get("/metrics")).text


async def test_a_client_that_leaves_while_waiting_never_reaches_the_server():
    go_on = asyncio.Event()
    async with bench(answer({"wait": go_on}, "a", done_line()), max_parallel=1) as (upstream, service, client):
        first = asyncio.create_task(client.post("/api/chat", json=BODY))
        await until(lambda: len(sent(upstream)) == 1)
        second = asyncio.create_task(client.post("/api/chat", json=BODY))
        await until(lambda: service.gate.waiting == 1)
        second.cancel()
        await until(lambda: service.gate.waiting == 0)
        go_on.set()
        assert (await first).status_code == 200
        assert len(sent(upstream)) == 1
