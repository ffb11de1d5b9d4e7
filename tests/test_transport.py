"""The stamping transport over real sockets: connections, their reuse, their ends, and the stamps."""

import asyncio
import contextlib
import gzip
import inspect
import json
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import MS, Clock, chat, server_at, until
from played import PlayedServer, answer, done_line, json_answer, line

from llmlab.client import Client
from llmlab.client.arrivals import Arrivals
from llmlab.client.dial import race, resolve
from llmlab.client.transport import StampingTransport
from llmlab.errors import ServerError, SilenceTimeout, Unreachable

PING = json_answer({"ok": True}, "GET /ping")


def request(server: PlayedServer, path: str = "/ping", method: str = "GET", **limits: float) -> httpx.Request:
    return httpx.Request(method, server.url + path, extensions={"timeout": {"connect": 5.0, "read": 5.0, **limits}})


async def ask(transport: StampingTransport, asked: httpx.Request) -> bytes:
    response = await transport.handle_async_request(asked)
    return await response.aread()


def arrivals(response: httpx.Response) -> Arrivals:
    found: Arrivals = response.extensions["arrivals"]
    return found


async def test_a_connection_is_reused() -> None:
    async with PlayedServer([PING]) as server:
        transport = StampingTransport()
        for _ in range(3):
            assert json.loads(await ask(transport, request(server))) == {"ok": True}
        assert server.connections == 1
        await transport.aclose()


async def test_an_idle_connection_that_was_closed_is_not_used_again() -> None:
    async with PlayedServer([PING]) as server:
        transport = StampingTransport()
        await ask(transport, request(server))
        server.drop_idle()
        await server.requests[0].left.wait()
        response = await transport.handle_async_request(request(server))
        await response.aread()
        assert server.connections == 2
        assert arrivals(response).connect_ns is not None
        await transport.aclose()


async def test_a_reused_connection_that_dies_unanswered_is_replaced_once() -> None:
    drop = {"route": "GET /ping", "drop_connection_without_response": True}
    async with PlayedServer([{**PING, "always": False}, drop, PING]) as server:
        transport = StampingTransport()
        await ask(transport, request(server))
        await ask(transport, request(server))
        assert [asked.connection for asked in server.requests] == [1, 1, 2]
        await transport.aclose()


async def test_a_new_connection_that_dies_unanswered_is_an_error() -> None:
    drop = {"route": "GET /ping", "drop_connection_without_response": True}
    async with PlayedServer([drop, PING]) as server:
        transport = StampingTransport()
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, request(server))
        assert len(server.requests) == 1
        await transport.aclose()


async def test_a_dead_reused_connection_that_had_begun_to_answer_is_an_error() -> None:
    half = {"route": "GET /ping", "body": [{"text": "x"}], "end": "close"}
    async with PlayedServer([{**PING, "always": False}, half, PING]) as server:
        transport = StampingTransport()
        await ask(transport, request(server))
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, request(server))
        assert len(server.requests) == 2
        await transport.aclose()


async def test_connections_can_be_opened_ahead() -> None:
    async with PlayedServer([PING]) as server:
        transport = StampingTransport()
        await transport.connect(httpx.URL(server.url), 3)
        responses = await asyncio.gather(*(transport.handle_async_request(request(server)) for _ in range(3)))
        assert [arrivals(response).connect_ns for response in responses] == [None] * 3
        assert server.connections == 3
        await transport.connect(httpx.URL(server.url), 3)
        for response in responses:
            await response.aread()
        await transport.aclose()


async def test_many_requests_at_once_never_queue() -> None:
    gate = asyncio.Event()
    slow = {**PING, "body": [{"wait": gate}, {"text": "{}"}]}
    async with PlayedServer([slow]) as server:
        transport = StampingTransport()
        tasks = [asyncio.ensure_future(ask(transport, request(server))) for _ in range(150)]
        await until(lambda: len(server.requests) == 150)
        gate.set()
        assert await asyncio.gather(*tasks) == [b"{}"] * 150
        await transport.aclose()


async def test_stamps_are_taken_when_bytes_arrive_not_when_they_are_read() -> None:
    clock = Clock()
    steps = [{"call": clock.later(200)}, {"text": "a"}]
    async with PlayedServer([{**PING, "body": steps, "headers_first": True}]) as server:
        transport = StampingTransport(clock)
        response = await transport.handle_async_request(request(server))
        body = arrivals(response)
        await body.more()
        clock.later(5_000)()
        [(stamp_ns, data)] = body.take()
        assert body.sent_ns is not None
        assert (stamp_ns - body.sent_ns, data) == (200 * MS, b"a")
        assert body.source == "socket"
        await transport.aclose()


async def test_the_request_is_stamped_when_its_last_byte_is_out() -> None:
    clock, size = Clock(), 8_000_000
    reading = asyncio.Event()
    received = bytearray()

    async def late_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        while len(received) < size:
            received.extend(await reader.read(1 << 20))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(late_reader, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    transport = StampingTransport(clock)
    asked = httpx.Request("POST", url, content=b"x" * size)
    task = asyncio.ensure_future(transport.handle_async_request(asked))
    await until(lambda: "arrivals" in asked.extensions)
    assert asked.extensions["arrivals"].sent_ns is None
    clock.later(70)()
    reading.set()
    response = await task
    assert arrivals(response).sent_ns == clock.now_ns
    assert await response.aread() == b"{}"
    await transport.aclose()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("plain", ["length", "eof", None])
async def test_bodies_of_every_framing_end_well(plain: str | None) -> None:
    async with PlayedServer([{**PING, "body": [{"text": "ab"}, {"text": "cd"}], "plain": plain}]) as server:
        transport = StampingTransport()
        for _ in range(2):
            assert await ask(transport, request(server)) == b"abcd"
        assert server.connections == (2 if plain == "eof" else 1)
        await transport.aclose()


@pytest.mark.parametrize(("end", "error"), [("close", httpx.RemoteProtocolError), ("reset", httpx.ReadError)])
async def test_a_body_that_breaks_off_gives_what_came_first(end: str, error: type[Exception]) -> None:
    async with PlayedServer([{**PING, "body": [{"text": "ab"}], "end": end}]) as server:
        transport = StampingTransport()
        body = arrivals(await transport.handle_async_request(request(server)))
        await body.more()
        assert [data for _, data in body.take()] == [b"ab"]
        with pytest.raises(error):
            await body.more()
        await transport.aclose()


async def test_a_content_length_that_is_not_reached_is_an_error() -> None:
    body = [{"text": "ab"}]
    async with PlayedServer([{**PING, "headers": {"content-length": "9"}, "body": body, "plain": "eof"}]) as server:
        transport = StampingTransport()
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, request(server))
        await transport.aclose()


async def test_silence_before_the_head_and_in_the_body_is_noticed() -> None:
    never = asyncio.Event()
    before = {**PING, "body": [{"wait": never}], "always": False}
    inside = {**PING, "body": [{"text": "a"}, {"wait": never}], "always": False}
    async with PlayedServer([before, inside]) as server:
        transport = StampingTransport()
        with pytest.raises(httpx.ReadTimeout):
            await ask(transport, request(server, read=0.02))
        response = await transport.handle_async_request(request(server, read=0.02))
        with pytest.raises(httpx.ReadTimeout):
            await response.aread()
        for asked in server.requests:
            await asked.left.wait()
        await transport.aclose()


async def test_bytes_that_keep_coming_are_no_silence() -> None:
    clock = Clock()
    # The clock says that each gap is shorter than the limit, and all of them together longer.
    steps = [{"call": clock.later(30)}, {"text": "a"}, {"sleep_ms": 25}] * 3
    async with PlayedServer([{**PING, "body": steps}]) as server:
        transport = StampingTransport(clock)
        assert await ask(transport, request(server, read=0.04)) == b"aaa"
        await transport.aclose()


async def test_nobody_there_is_a_connect_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        transport = StampingTransport()
        with pytest.raises(httpx.ConnectError, match="refused"):
            await transport.handle_async_request(httpx.Request("GET", url))


async def test_a_host_that_does_not_answer_times_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # Connections beyond the backlog get no answer, as from a host behind a silent firewall.
        held = [socket.socket() for _ in range(4)]
        for sock in held:
            sock.setblocking(False)
            sock.connect_ex(address)
        transport = StampingTransport()
        asked = httpx.Request("GET", f"http://127.0.0.1:{address[1]}/", extensions={"timeout": {"connect": 0.05}})
        with pytest.raises(httpx.ConnectTimeout):
            await transport.handle_async_request(asked)
        for sock in held:
            sock.close()


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", b"\x00" * 40])
async def test_what_is_not_http_is_a_protocol_error(raw: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    transport = StampingTransport()
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        await transport.handle_async_request(
            httpx.Request("GET", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        )
    await transport.aclose()
    server.close()


class RawServer:
    """Writes fixed bytes once a request came, and leaves the connection open."""

    def __init__(self, *parts: bytes, pause: bool = False) -> None:
        self._parts = parts
        self._pause = pause
        self._tasks: list[asyncio.Task[Any]] = []
        self.connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while await reader.readuntil(b"\r\n\r\n"):
            for part in self._parts:
                writer.write(part)
                await writer.drain()
                for _ in range(5 if self._pause else 0):
                    # The client's event loop is ours too: let it read what came.
                    await asyncio.sleep(0)

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._quietly, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def _quietly(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await self._serve(reader, writer)
        writer.close()

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)


async def test_bytes_that_come_one_by_one_are_no_end() -> None:
    """A chunk's length may come before its data: the reader must not take that for the end of the body."""
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    raw = RawServer(*(whole[at : at + 1] for at in range(len(whole))), pause=True)
    async with raw as url:
        transport = StampingTransport()
        for _ in range(2):
            response = await transport.handle_async_request(httpx.Request("GET", url))
            assert await response.aread() == b"abc"
        assert raw.connections == 1
        await transport.aclose()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_an_interim_response_is_not_the_answer() -> None:
    raw = RawServer(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK)
    async with raw as url:
        transport = StampingTransport()
        for _ in range(2):
            response = await transport.handle_async_request(httpx.Request("GET", url))
            assert (response.status_code, await response.aread(), "link" in response.headers) == (200, b"ok", False)
        assert raw.connections == 1
        await transport.aclose()


async def test_more_than_was_asked_for_never_reaches_the_next_answer() -> None:
    raw = RawServer(OK + OK.replace(b"ok", b"no"))
    async with raw as url:
        transport = StampingTransport()
        for _ in range(2):
            response = await transport.handle_async_request(httpx.Request("GET", url))
            assert await response.aread() == b"ok"
        assert raw.connections == 2
        await transport.aclose()


async def test_a_head_request_has_no_body() -> None:
    async with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n") as url:
        transport = StampingTransport()
        response = await transport.handle_async_request(httpx.Request("HEAD", url))
        assert (response.status_code, await response.aread()) == (200, b"")
        await transport.aclose()


async def test_an_endless_head_is_refused() -> None:
    async with RawServer(b"HTTP/1.1 200 OK\r\n", *[b"x-filler: " + b"y" * 65_000 + b"\r\n"] * 6) as url:
        transport = StampingTransport()
        with pytest.raises(httpx.RemoteProtocolError, match="too long"):
            await transport.handle_async_request(httpx.Request("GET", url))
        await transport.aclose()


async def test_a_slow_reader_stops_the_server_and_loses_nothing() -> None:
    block, blocks = "z" * 65_536, 400
    async with PlayedServer([{**PING, "body": [{"text": block}] * blocks}]) as server:
        transport = StampingTransport()
        response = await transport.handle_async_request(request(server))
        body = arrivals(response)
        for _ in range(200):
            await asyncio.sleep(0)
        taken = sum(len(data) for _, data in body.take())
        assert 0 < taken < len(block) * blocks / 2
        while taken < len(block) * blocks:
            await body.more()
            taken += sum(len(data) for _, data in body.take())
        assert taken == len(block) * blocks
        await transport.aclose()


async def test_letting_go_of_a_body_closes_its_connection_at_once() -> None:
    forever = {"repeat_forever": {"x": 1}, "every_ms": 1}
    async with PlayedServer([{**PING, "body": [forever]}]) as server:
        transport = StampingTransport()
        response = await transport.handle_async_request(request(server))
        await response.aclose()
        await server.requests[0].left.wait()
        await transport.aclose()


async def test_a_cancelled_wait_for_the_head_closes_the_connection() -> None:
    never = asyncio.Event()
    async with PlayedServer([{**PING, "body": [{"wait": never}]}]) as server:
        transport = StampingTransport()
        task = asyncio.ensure_future(transport.handle_async_request(request(server)))
        await until(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.requests[0].left.wait()
        await transport.aclose()


async def test_a_finished_answer_waits_for_its_end_and_keeps_the_connection() -> None:
    gate = asyncio.Event()
    late_end = answer("hi", done_line(), {"wait": gate})
    async with PlayedServer([late_end, answer("ho", done_line())]) as server, Client(server_at(server.url)) as client:
        assert (await chat(client)).call.outcome == "ok"
        assert not server.requests[0].left.is_set()
        gate.set()
        await until(lambda: server.answered == 1)
        assert (await chat(client)).call.connect_ns is None
        assert server.connections == 1


async def test_a_host_with_a_dead_first_address_is_reached_by_the_second() -> None:
    async with PlayedServer([PING]) as server:
        with socket.socket() as dead:
            dead.bind(("127.0.0.1", 0))
            ports = {"refused": dead.getsockname()[1], "alive": server.port}

            async def connect(name: str) -> asyncio.StreamWriter:
                return (await asyncio.open_connection("127.0.0.1", ports[name]))[1]

            for names in (["refused", "alive"], ["alive", "refused"]):
                writer = await race(names, 10.0, connect, asyncio.StreamWriter.close)
                assert writer.get_extra_info("peername")[1] == server.port
                writer.close()
                await writer.wait_closed()
            with pytest.raises(ConnectionRefusedError):
                await race(["refused", "refused"], 10.0, connect, asyncio.StreamWriter.close)


async def test_a_slow_address_is_overtaken_and_dropped_when_it_comes_late() -> None:
    slow, dropped = asyncio.Event(), asyncio.Event()

    async def connect(name: str) -> str:
        if name == "slow":
            try:
                await slow.wait()
            except asyncio.CancelledError:
                # It got through in the moment of its cancellation.
                return name
        return name

    def drop(name: str) -> None:
        assert name == "slow"
        dropped.set()

    assert await race(["slow", "quick"], 0.0, connect, drop) == "quick"
    await dropped.wait()


async def test_localhost_tries_ipv4_first() -> None:
    assert (await resolve("localhost", 11434))[0] == "127.0.0.1"
    assert await resolve("127.0.0.1", 80) == ["127.0.0.1"]
    assert await resolve("::1", 80) == ["::1"]


async def test_a_name_is_as_good_as_an_address() -> None:
    async with PlayedServer([PING]) as server:
        transport = StampingTransport()
        asked = httpx.Request("GET", f"http://localhost:{server.port}/ping")
        assert await ask(transport, asked) == b'{"ok": true}'
        await transport.aclose()


async def test_a_name_that_does_not_exist_is_a_connect_error() -> None:
    transport = StampingTransport()
    for host in ("no-such-host.invalid", "a" * 70 + ".invalid"):
        with pytest.raises((httpx.ConnectError, httpx.InvalidURL)):
            await transport.handle_async_request(httpx.Request("GET", f"http://{host}/"))


async def test_other_schemes_are_refused() -> None:
    with pytest.raises(httpx.UnsupportedProtocol):
        await StampingTransport().handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))


async def test_compression_nobody_asked_for_is_undone_and_keeps_its_stamps() -> None:
    clock = Clock()
    body = gzip.compress(b'{"message":{"content":"packed"},"done":true,"done_reason":"stop"}\n')
    steps = [{"hex": body[:30].hex()}, {"call": clock.later(100)}, {"hex": body[30:].hex()}]
    packed = {"headers": {"content-type": "application/x-ndjson", "content-encoding": "gzip"}, "body": steps}
    async with PlayedServer([packed]) as server, Client(server_at(server.url), clock=clock) as client:
        got = await chat(client)
        assert (got.text, got.call.outcome, got.call.timing_source) == ("packed", "ok", "socket")
        assert got.call.ttft_ns == 100 * MS
        assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(("encoding", "words"), [("br", "compressed with br"), ("gzip", "broken")])
async def test_compression_that_cannot_be_undone_is_an_error(encoding: str, words: str) -> None:
    packed = {"headers": {"content-encoding": encoding}, "body": [{"text": "not packed"}]}
    async with PlayedServer([packed]) as server, Client(server_at(server.url)) as client:
        got = await chat(client)
        assert isinstance(got.error, ServerError)
        assert words in str(got.error)


async def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    # A certificate for 127.0.0.1 that nobody but this test trusts.
    trusted = Path(__file__).with_name("localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted)
    async with PlayedServer([answer("hi", done_line())] * 3, ssl=context) as server:
        async with Client(server_at(server.url)) as client:
            got = await chat(client)
            assert isinstance(got.error, Unreachable)
            assert "certificate" in str(got.error)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        async with Client(server_at(server.url)) as client:
            got = await chat(client)
            assert (got.text, got.call.outcome, got.call.timing_source) == ("hi", "ok", "socket")
            assert (await chat(client)).call.connect_ns is None


@pytest.mark.skipif(sys.platform == "win32", reason="resets look different there")
async def test_every_end_of_a_connection_leaves_one_call() -> None:
    for end, outcome in (("ok", "incomplete"), ("close", "incomplete"), ("reset", "incomplete")):
        async with PlayedServer([answer("half", end=end)]) as server, Client(server_at(server.url)) as client:
            got = await chat(client)
            assert (got.text, got.call.outcome, got.call.pieces) == ("half", outcome, 1)
            assert isinstance(got.error, ServerError)
            assert not isinstance(got.error, SilenceTimeout)


async def test_the_end_of_the_answer_counts_even_where_the_connection_breaks() -> None:
    last = done_line()["line"]
    for text in (json.dumps(last), json.dumps(last) + "\n"):
        script = [answer(line("whole"), {"text": text}, end="close")]
        async with PlayedServer(script) as server, Client(server_at(server.url)) as client:
            got = await chat(client)
            assert (got.text, got.call.outcome, got.error) == ("whole", "ok", None)


ARGLESS = [
    test
    for name, test in list(globals().items())
    if name.startswith("test_") and inspect.iscoroutinefunction(test) and not inspect.signature(test).parameters
]


@pytest.mark.parametrize("test", ARGLESS, ids=lambda test: test.__name__.removeprefix("test_"))
def test_on_uvloop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """uvloop's connections behave differently in detail: all of it holds there too."""
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(test())
