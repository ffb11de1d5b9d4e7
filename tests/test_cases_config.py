"""Faults of addresses, proxies and settings that people met, retold: through commands and real sockets.

The ids are those of the collection of cases; every single form of an address is in test_settings.py.
"""

from dataclasses import replace

import pytest

from llmlab.call import Call
from llmlab.chat import endings
from llmlab.conversation import Answer
from llmlab.settings import find_server
from tests.played import answer, done_line, refusal
from tests.playing import Playing

DEAD = "http://127.0.0.1:9"
FINE = {**answer("fine", done_line()), "always": True}


@pytest.fixture
def server():
    with Playing(FINE) as playing:
        yield playing


FORMS = {
    "C121": ["0.0.0.0:{port}", ":{port}", "http://0.0.0.0:{port}", "[::ffff:127.0.0.1]:{port}"],
    "C122": [
        "127.0.0.1:{port}",
        "http://127.0.0.1:{port}/",
        ' " 127.0.0.1:{port} " ',
        "'127.0.0.1:{port}'",
        "HTTP://127.0.0.1:{port}/api",
    ],
    "C127": ["localhost:{port}", "LocalHost:{port}"],
}


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS)
def test_every_form_of_an_address_reaches_the_server(lab, server, forms) -> None:
    """Also where only IPv4 listens and the name is localhost."""
    for form in forms:
        said = form.format(port=server.url.rpartition(":")[2])
        assert lab("chat", "hi", env={"OLLAMA_HOST": said}).stdout == "fine\n", form
        assert lab("chat", "hi", "--host", said, env={"OLLAMA_HOST": DEAD}).stdout == "fine\n", form
    shown = lab("doctor", env={"OLLAMA_HOST": said}).stdout
    assert "(from OLLAMA_HOST), reached directly" in shown


@pytest.mark.parametrize(
    ("host", "named"), [("10.0.0.5:99999", "99999"), ("myhost:abc", "abc"), ("ftp://myhost", "ftp://")]
)
def test_c122_a_bad_address_is_one_line_that_names_what_is_wrong(lab, host, named) -> None:
    for args in (("chat", "hi"), ("models",), ("bench", "--quick"), ("serve", "--port", "0")):
        result = lab(*args, env={"OLLAMA_HOST": host})
        assert result.exit_code == 2 and result.stderr.count("\n") == 1
        assert named in result.stderr and "OLLAMA_HOST" in result.stderr


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_c124_a_redirect_is_told_and_no_credential_goes_elsewhere(lab, status) -> None:
    moved = {"status": status, "headers": {"location": "", "content-type": "text/html"}, "body": [], "always": True}
    with Playing(FINE) as other:
        moved["headers"]["location"] = f"{other.url}/api/chat"
        with Playing(moved) as server:
            result = lab("chat", "hi", "--host", server.url, env={"LLMLAB_API_KEY": "k3y"})
            assert len(server.asked) == 1
        assert other.requests == []
    assert result.exit_code == 4
    assert f"redirects to {other.url}. Set OLLAMA_HOST or --host to {other.url}" in result.stderr


@pytest.mark.parametrize(
    "env",
    [{"HTTP_PROXY": DEAD}, {"HTTP_PROXY": DEAD, "NO_PROXY": "localhost"}, {"ALL_PROXY": DEAD}, {"all_proxy": DEAD}],
)
def test_c125_loopback_is_never_asked_by_a_proxy(lab, server, env) -> None:
    result = lab("chat", "hi", env={**env, "OLLAMA_HOST": server.url})
    assert (result.exit_code, result.stdout) == (0, "fine\n")


def test_c125_a_proxys_own_error_names_the_proxy(lab) -> None:
    """The proxy is asked for http://h.example/… and answers with a page of its own."""
    page = {"status": 502, "headers": {"content-type": "text/html"}, "body": [{"text": "<h1>Bad gateway</h1>"}]}
    with Playing({**page, "route": "GET http://h.example/api/version"}, pages=[]) as proxy:
        result = lab("chat", "hi", "--host", "http://h.example", env={"HTTP_PROXY": proxy.url})
        assert [request.path for request in proxy.requests][:1] == ["http://h.example/api/version"]
    assert result.exit_code in (3, 4)
    assert proxy.url in result.stderr and "NO_PROXY" in result.stderr and "<h1>" not in result.stderr


def test_c125_a_proxy_that_is_not_there_is_unreachable(lab) -> None:
    result = lab("chat", "hi", "--host", "http://h.example", env={"HTTP_PROXY": DEAD})
    assert result.exit_code == 3 and result.stderr.count("\n") == 1


def test_c127_the_default_is_an_address_and_a_slow_connection_is_mentioned() -> None:
    assert find_server(env={}).url == "http://127.0.0.1:11434"
    slow = Call(flags="slow_connect", connect_ns=2_100_000_000, output_tokens=9)
    said = list(endings(Answer("text", "", (), slow, None), None))
    assert said == ["connecting to this very machine took 2.1 s; 127.0.0.1 may be quicker than localhost"]
    assert not list(endings(Answer("text", "", (), replace(slow, flags=None), None), None))


@pytest.mark.parametrize(
    ("given", "sent"),
    [("-1", -1), ("0", 0), ("30", 30), ("5m", "5m"), ("-1m", "-1m"), ("1h30m", "1h30m"), (None, "left out")],
)
def test_c128_keep_alive_goes_out_as_the_server_takes_it(lab, server, given, sent) -> None:
    option = () if given is None else ("--keep-alive", given)
    assert lab("chat", "hi", "--host", server.url, *option).exit_code == 0
    assert server.asked[0].get("keep_alive", "left out") == sent


def test_c128_what_is_no_duration_is_refused_before_anything_is_sent(lab, server) -> None:
    result = lab("chat", "hi", "--host", server.url, "--keep-alive", "abc")
    assert result.exit_code == 2 and "abc" in result.stderr
    assert server.requests == []


def test_c16_nothing_is_asked_again_where_that_makes_it_worse(lab) -> None:
    limit = {**refusal(429, {"error": "limit"}, retry_after="120"), "always": True}
    with Playing(limit) as server:
        assert lab("chat", "hi", "--host", server.url).exit_code == 4
        assert len(server.asked) == 1
