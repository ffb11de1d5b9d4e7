"""An answer that is read as a whole: prepared ahead, read in batches, and as true and as quick to end as any other.

What is recorded of it is compared with reading piece by piece in the other tests of the client.
"""

import asyncio

import pytest
from asking import HELLO, server_at, until
from played import PlayedServer, answer, done_line, json_answer, line

from llmlab.client import ChatOptions, Client, pour
from llmlab.errors import ServerError


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether something waits: what is read then is read for a reason of its own."""
    monkeypatch.setattr(pour, "LOOK_S", 1e6)


async def test_the_first_bytes_the_end_and_a_full_buffer_are_read_at_once(patient: None) -> None:
    gate, block = asyncio.Event(), "z" * 300_000
    body = answer("first", {"wait": gate}, *[block] * 20, done_line())
    async with PlayedServer([body]) as server, Client(server_at(server.url)) as client:
        async with client.chat(HELLO, ChatOptions(model="m")) as stream:
            reading = asyncio.ensure_future(stream.read())
            await until(lambda: stream.text)
            assert stream.text == "first"
            gate.set()
            await reading
        assert len(stream.text) == len("first") + len(block) * 20
        assert (stream.call.outcome, stream.call.pieces) == ("ok", 21)


async def test_what_lies_between_is_read_in_batches(patient: None) -> None:
    gate, held = asyncio.Event(), asyncio.Event()
    body = answer("first", {"wait": gate}, " second", {"wait": held}, " third", done_line())
    async with PlayedServer([body]) as server, Client(server_at(server.url)) as client:
        async with client.chat(HELLO, ChatOptions(model="m")) as stream:
            reading = asyncio.ensure_future(stream.read())
            await until(lambda: stream.text)
            gate.set()
            arrivals = stream._arrivals
            await until(lambda: arrivals.chunks)
            assert stream.text == "first", "its stamp is taken, and nobody waits for it"
            held.set()
            await reading
        assert stream.text == "first second third"


async def test_an_answer_that_ends_on_an_open_connection_is_seen_all_the_same() -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    body = answer("all", {"wait": gate}, done_line(), {"wait": never})
    async with PlayedServer([body]) as server, Client(server_at(server.url)) as client:
        stream = client.chat(HELLO, ChatOptions(model="m"))
        reading = asyncio.ensure_future(stream.read())
        await until(lambda: stream.text)
        gate.set()
        await reading
        assert (stream.text, stream.call.outcome) == ("all", "ok")


@pytest.mark.usefixtures("patient")
async def test_an_error_in_mid_answer_is_raised_after_what_came() -> None:
    body = answer("a", line("b"), end="reset")
    async with PlayedServer([body]) as server, Client(server_at(server.url)) as client:
        async with client.chat(HELLO, ChatOptions(model="m")) as stream:
            with pytest.raises(ServerError):
                await stream.read()
            await stream.read()
        assert (stream.text, stream.call.outcome) == ("ab", "incomplete")


async def test_a_cancelled_read_closes_at_once(patient: None) -> None:
    never = asyncio.Event()
    async with PlayedServer([answer("a", {"wait": never})]) as server, Client(server_at(server.url)) as client:
        stream = client.chat(HELLO, ChatOptions(model="m"))
        reading = asyncio.ensure_future(stream.read())
        await until(lambda: stream.text)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await server.requests[0].left.wait()
        assert stream.call.outcome == "cancelled"


@pytest.mark.parametrize("limited", [False, True])
async def test_what_had_arrived_belongs_to_the_record_of_a_call_that_was_stopped(patient: None, limited: bool) -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    body = answer("a", {"wait": gate}, "b", {"wait": never})
    async with (
        PlayedServer([body]) as server,
        Client(server_at(server.url), total_s=1.0 if limited else None) as client,
    ):
        stream = client.chat(HELLO, ChatOptions(model="m"))
        reading = asyncio.ensure_future(stream.read())
        await until(lambda: stream.text)
        gate.set()
        if not limited:
            arrivals = stream._arrivals
            await until(lambda: arrivals.chunks)
            reading.cancel()
        with pytest.raises(ServerError if limited else asyncio.CancelledError):
            await reading
        assert (stream.text, stream.call.pieces) == ("ab", 2)
        assert stream.call.outcome == ("timeout" if limited else "cancelled")


async def test_a_prepared_chat_only_has_to_be_sent() -> None:
    async with PlayedServer([answer("hi", done_line())]) as server, Client(server_at(server.url)) as client:
        async with client.chat(HELLO, ChatOptions(model="m", num_ctx=512)) as stream:
            stream.prepare()
            assert (server.requests, client.in_flight, client.started) == ([], 0, 0)
            await stream.read()
        assert [asked.json["options"] for asked in server.requests] == [{"num_ctx": 512}]
        assert stream.call.outcome == "ok"


async def test_a_chat_prepared_before_the_server_is_known_asks_who_it_is() -> None:
    version = json_answer({"version": "0.12.6"}, "GET /api/version")
    async with PlayedServer([version, answer("hi", done_line())]) as server:
        async with (
            Client(server_at(server.url, "auto")) as client,
            client.chat(HELLO, ChatOptions(model="m")) as stream,
        ):
            stream.prepare()
            await stream.read()
        assert [asked.path for asked in server.requests] == ["/api/version", "/api/chat"]
        assert (stream.text, stream.call.outcome) == ("hi", "ok")
