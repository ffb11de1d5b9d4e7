"""The guard: who is let in, and what of a request."""

import asyncio
from contextlib import suppress

import pytest

from llmlab.errors import UsageError
from llmlab.serve.guard import Rules, serve_key
from tests.played import answer
from tests.serving import RawClient, asking, bench, sent, serving, until

PATHS = [
    ("GET", "/"),
    ("POST", "/chat"),
    ("POST", "/api/chat"),
    ("GET", "/api/tags"),
    ("GET", "/metrics"),
    ("HEAD", "/"),
]
BODY = {"model": "demo:1b", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "127.8.9.1"])
def test_the_servers_own_names_are_let_in(host):
    assert Rules().host_allowed(host)


FOREIGN = ["evil.example", "evil.example:8000", "192.168.1.2", "", "localhost.evil.example", "127.0.0.1.evil.example"]
ODD = ["a@localhost", "localhost/x", "localhost:x", "[::1", "127.0.0.1, evil.example", "0x7f.1", "xlocalhost"]


@pytest.mark.parametrize("host", [*FOREIGN, *ODD])
def test_foreign_and_odd_names_are_not(host):
    assert not Rules().host_allowed(host)


def test_names_can_be_listed_and_a_server_for_others_answers_to_addresses():
    assert Rules(names=("lab.local",)).host_allowed("lab.local:8000")
    assert not Rules(names=("lab.local",)).host_allowed("x.lab.local")
    assert Rules(bind_host="0.0.0.0").host_allowed("192.168.1.2:8000")
    assert Rules(bind_host="0.0.0.0").host_allowed("[fe80::1]:8000")
    assert not Rules(bind_host="0.0.0.0").host_allowed("evil.example")


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_foreign_host_gets_nothing(method, path, fake):
    async with serving(fake.url) as service, asking(service) as client:
        before = list(fake.requests)
        for host in ("evil.example", f"evil.example:{client.base_url.port}"):
            response = await client.request(method, path, headers={"host": host}, json=BODY)
            assert response.status_code == 403
        assert fake.requests == before


async def test_no_host_or_two_of_them_get_nothing(fake):
    async with serving(fake.url) as service:
        for hosts in ("", "Host: 127.0.0.1\r\nHost: evil.example\r\n"):
            client = await RawClient.connect(service.url)
            client.writer.write(f"GET /info HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
            assert b" 403 " in await client.until(b"\r\n")
            client.leave()


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://"]
)
async def test_a_page_of_another_origin_gets_nothing(method, path, origin, fake):
    async with serving(fake.url) as service, asking(service) as client:
        before = list(fake.requests)
        response = await client.request(method, path, headers={"origin": origin}, json=BODY)
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
        assert fake.requests == before


async def test_our_own_page_may_ask(fake):
    async with serving(fake.url) as service, asking(service) as client:
        assert (await client.get("/info", headers={"origin": service.url})).status_code == 200
        local = service.url.replace("127.0.0.1", "localhost")
        headers = {"origin": local, "host": local.removeprefix("http://")}
        assert (await client.get("/info", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("none", "navigate", 200),
    ],
)
async def test_a_foreign_page_cannot_even_embed_a_file_but_may_link(site, mode, status, fake):
    async with serving(fake.url) as service, asking(service) as client:
        headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
        assert (await client.get("/", headers=headers)).status_code == status


async def test_a_listed_origin_may_ask_and_read():
    app = "https://app.example"
    async with bench(origins=(app,)) as (upstream, _, client):
        asked = {
            "origin": app,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type",
        }
        preflight = await client.options("/api/tags", headers=asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == app
        assert "content-type" in preflight.headers["access-control-allow-headers"]
        assert "access-control-allow-private-network" not in preflight.headers
        response = await client.get("/api/tags", headers={"origin": app})
        assert response.headers["access-control-allow-origin"] == app
        assert "origin" not in sent(upstream, "/api/tags")[-1].headers
        refused = await client.get("/api/tags", headers={"origin": "https://other.example"})
        assert "access-control-allow-origin" not in refused.headers


async def test_a_key_is_asked_of_everybody_but_for_the_page_and_the_health(fake, monkeypatch):
    monkeypatch.setenv("LLMLAB_SERVE_KEY", "s3cret-wörd")
    async with serving(fake.url) as service, asking(service) as client:
        before = list(fake.requests)
        for method, path in [*PATHS[1:], ("GET", "/info"), ("GET", "/openapi.json")]:
            for given in ({}, *({"authorization": word} for word in ("Bearer wrong", "Basic s3cret", "Bearer"))):
                response = await client.request(method, path, json=BODY, headers=given)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert "s3cret" not in response.text
        assert fake.requests == before
        for path in ("/", "/healthz", "/static/page.js"):
            assert (await client.get(path)).status_code == 200
        right = {"authorization": "bearer s3cret-wörd".encode()}
        assert (await client.get("/info", headers=right)).status_code == 200
        assert (await client.get("/api/tags", headers=right)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "lab.example", ""])
def test_listening_for_others_needs_a_key(host):
    with pytest.raises(UsageError, match="LLMLAB_SERVE_KEY"):
        serve_key(host, {})
    with pytest.raises(UsageError):
        serve_key(host, {"LLMLAB_SERVE_KEY": " "})
    assert serve_key(host, {"LLMLAB_SERVE_KEY": "word"}) == "word"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "[::1]", "127.0.0.2"])
def test_loopback_needs_none(host):
    assert serve_key(host, {}) is None


@pytest.mark.parametrize("path", ["/chat", "/api/chat", "/v1/chat/completions", "/api/embed"])
async def test_a_body_of_ten_megabytes_is_a_413_that_the_client_reads(path, fake):
    async with serving(fake.url) as service, asking(service) as client:
        response = await client.post(path, content=b"x" * 10_000_000)
        assert response.status_code == 413
        assert response.json()["error"]
        assert (await client.get("/healthz")).status_code == 200
        assert fake.served == []


@pytest.mark.parametrize("head", ["Transfer-Encoding: chunked", "Content-Length: 10000000000"])
async def test_a_body_without_an_end_is_a_413_and_the_connection_ends(head, fake):
    async with serving(fake.url, max_body_bytes=1000) as service:
        client = await RawClient.connect(service.url)
        client.writer.write(f"POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n\r\n".encode())
        client.writer.write(b"4000\r\n" + b"x" * 16384 + b"\r\n" if "chunked" in head else b"x" * 16384)
        answer = await client.rest()
        assert b" 413 " in answer.split(b"\r\n")[0]
        assert b"1,000 bytes" in answer
        assert fake.served == []


async def test_a_body_that_does_not_come_is_a_408(fake):
    async with serving(fake.url, body_timeout_s=0.02) as service:
        client = await RawClient.connect(service.url)
        client.writer.write(b"POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf")
        assert b" 408 " in (await client.rest()).split(b"\r\n")[0]


async def test_a_client_that_leaves_in_mid_request_leaves_nothing_behind(fake):
    async with serving(fake.url) as service:
        client = await RawClient.connect(service.url)
        client.writer.write(b"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf")
        await client.writer.drain()
        client.leave()
        await asyncio.sleep(0)
    assert fake.served == []


async def test_silent_clients_are_closed(fake):
    async with serving(fake.url, head_timeout_s=0.02) as service:
        for said in (b"", b"GET / HTTP/1.1\r\nHost: 127"):
            client = await RawClient.connect(service.url)
            client.writer.write(said)
            with suppress(ConnectionResetError):
                assert await client.rest() == b""


async def test_a_client_that_stops_reading_is_closed_and_frees_the_server():
    flood = {"message": {"role": "assistant", "content": "x" * 60_000}, "done": False}
    async with bench(answer({"repeat_forever": flood, "every_ms": 0}), stall_timeout_s=0.05) as (upstream, service, _):
        client = await RawClient.connect(service.url)
        client.writer.transport.pause_reading()
        await client.post("/api/chat", BODY)
        await until(lambda: sent(upstream))
        await sent(upstream)[0].left.wait()
        await until(lambda: not len(service.attendance))
        client.leave()


async def test_no_secret_of_the_servers_address_gets_out(fake, rows, monkeypatch, tmp_path):
    monkeypatch.setenv("LLMLAB_API_KEY", "k3y-word")
    address = fake.url.replace("http://", "http://tester:s3cret@")
    lines = []
    async with serving(address, tell=lines.append) as service, asking(service) as client:
        seen = [await client.get("/info"), await client.get("/metrics")]
        seen.append(await client.post("/chat", json={"message": "hi", "model": "nosuch"}))
        seen.append(await client.post("/api/chat", json={**BODY, "model": "nosuch"}))
        service.greet()
    assert [response.status_code for response in seen] == [200, 200, 404, 404]
    assert "tester:***@" in "".join(lines)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("lab.db*"))
    for text in (*lines, *(response.text for response in seen), stored.decode("latin-1")):
        assert "s3cret" not in text
        assert "k3y-word" not in text


async def test_a_proxy_of_the_environment_is_not_in_the_way_of_loopback(fake, monkeypatch):
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(fake.url) as service, asking(service) as client:
        assert (await client.get("/api/tags")).status_code == 200
