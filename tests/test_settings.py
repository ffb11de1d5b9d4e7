"""Which server: every form of an address, and no secret shown; proxies, files, keep_alive."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmlab.errors import UsageError
from llmlab.settings import (
    cache_folder,
    data_folder,
    database_path,
    find_server,
    is_loopback,
    parse_keep_alive,
)

URLS = {
    "": "http://127.0.0.1:11434",
    "   ": "http://127.0.0.1:11434",
    '""': "http://127.0.0.1:11434",
    # addresses to bind to
    "0.0.0.0": "http://127.0.0.1:11434",
    "0.0.0.0:8080": "http://127.0.0.1:8080",
    "http://0.0.0.0:11434": "http://127.0.0.1:11434",
    "https://0.0.0.0": "https://127.0.0.1:443",
    ":11434": "http://127.0.0.1:11434",
    ":8080": "http://127.0.0.1:8080",
    "http://:8080": "http://127.0.0.1:8080",
    "http://": "http://127.0.0.1:80",
    "[::]:11434": "http://[::1]:11434",
    "[::]": "http://[::1]:11434",
    "::": "http://[::1]:11434",
    "0:0:0:0:0:0:0:0": "http://[::1]:11434",
    # without scheme or port
    "myhost": "http://myhost:11434",
    "myhost:": "http://myhost:11434",
    "myhost:8080": "http://myhost:8080",
    "MyHost": "http://myhost:11434",
    "my_host.example.": "http://my_host.example.:11434",
    "10.0.0.5": "http://10.0.0.5:11434",
    "10.0.0.5:80": "http://10.0.0.5:80",
    "localhost": "http://localhost:11434",
    "bücher.example": "http://bücher.example:11434",
    # IPv6
    "::1": "http://[::1]:11434",
    "[::1]": "http://[::1]:11434",
    "[::1]:1337": "http://[::1]:1337",
    "http://[::1]": "http://[::1]:80",
    "FD00::0:5": "http://[fd00::5]:11434",
    "fe80::1%eth0": "http://[fe80::1%eth0]:11434",
    "[fe80::1%eth0]:8080": "http://[fe80::1%eth0]:8080",
    "http://[fe80::1%25eth0]:8080": "http://[fe80::1%eth0]:8080",
    # scheme
    "http://myhost": "http://myhost:80",
    "https://myhost": "https://myhost:443",
    "HTTPS://myhost:8443": "https://myhost:8443",
    "ollama.com": "https://ollama.com:443",
    # quotes and spaces
    ' " 10.0.0.5 " ': "http://10.0.0.5:11434",
    "'10.0.0.5'": "http://10.0.0.5:11434",
    '"http://myhost:1/"\r\n': "http://myhost:1",
    # paths
    "myhost/": "http://myhost:11434",
    "http://myhost:8080///": "http://myhost:8080",
    "http://myhost/ollama/": "http://myhost:80/ollama",
    "myhost:8080/a/b": "http://myhost:8080/a/b",
    "http://myhost:11434/api": "http://myhost:11434",
    "http://myhost:11434/api/": "http://myhost:11434",
    "http://myhost:11434/v1": "http://myhost:11434",
    "http://myhost:11434/api/chat": "http://myhost:11434",
    "http://myhost:11434/v1/chat/completions": "http://myhost:11434",
    "https://myhost/ollama/api/": "https://myhost:443/ollama",
    "https://myhost/api/v1": "https://myhost:443/api",
    "https://myhost/apis": "https://myhost:443/apis",
}


@pytest.mark.parametrize(("host", "url"), URLS.items())
def test_every_form_of_an_address_in_the_environment_and_on_the_command_line(host: str, url: str) -> None:
    assert find_server(env={"OLLAMA_HOST": host}).url == url
    assert find_server(host, env={}).url == url
    assert httpx.URL(url).scheme in ("http", "https")


BAD = {
    "10.0.0.5:99999": "99999",
    "10.0.0.5:0": "0",
    "myhost:abc": "abc",
    "http://myhost:-1": "-1",
    "http://myhost:٣": "٣",
    "[::1]:x": "x",
    "ftp://myhost": "ftp",
    "unix:///run/ollama.sock": "unix",
    "a b://myhost": "scheme",
    "http:myhost": "myhost",
    "http:/myhost": "http://host",
    "my host": "host",
    "http://myhost?x=1": "address",
    "http://myhost/#here": "address",
    "my\x00host": "address",
    "[::1": "[address]",
    "[::1]8080": "[address]",
    "a..b": "host",
    "x" * 64: "host",
    "[myhost;rm]": "host",
    "*": "host",
    "10.0.0.5%eth0": "zone",
    "fe80::1%": "zone",
    "fe80::1%a b": "zone",
}


@pytest.mark.parametrize(("host", "named"), BAD.items())
def test_a_bad_address_is_an_error_that_names_what_is_wrong(host: str, named: str) -> None:
    with pytest.raises(UsageError) as error:
        find_server(env={"OLLAMA_HOST": host})
    assert named in str(error.value)
    assert "OLLAMA_HOST" in str(error.value)
    with pytest.raises(UsageError, match="--host"):
        find_server(host, env={})


def test_where_the_address_came_from() -> None:
    assert find_server(env={}).source == "default"
    assert find_server(env={"OLLAMA_HOST": "' '"}).source == "default"
    assert find_server(env={"OLLAMA_HOST": "a"}).source == "OLLAMA_HOST"
    server = find_server("b", env={"OLLAMA_HOST": "a"})
    assert (server.url, server.source) == ("http://b:11434", "--host")
    assert find_server("  ", env={"OLLAMA_HOST": "a"}).source == "OLLAMA_HOST"


def test_the_api_is_asked_for_and_never_guessed_from_a_pasted_path() -> None:
    assert find_server("http://myhost/v1", env={}).api == "auto"
    assert find_server("http://myhost/v1", "openai", {}).api == "openai"
    assert find_server(None, "ollama", {}).api == "ollama"
    with pytest.raises(UsageError, match="auto, ollama, openai"):
        find_server(None, "grpc", {})


# Secrets


def test_a_password_is_used_and_never_shown() -> None:
    server = find_server(env={"OLLAMA_HOST": "http://tester:s3cret@10.0.0.5:11434/x"})
    assert server.url == "http://10.0.0.5:11434/x"
    assert server.user_info == ("tester", "s3cret")
    assert server.shown == "http://tester:***@10.0.0.5:11434/x"
    assert "s3cret" not in repr(server) + str(server)


def test_a_name_without_a_password_may_be_a_token() -> None:
    server = find_server("https://t0ken@myhost", env={})
    assert (server.user_info, server.shown) == (("t0ken", ""), "https://***@myhost:443")
    assert "t0ken" not in repr(server)


def test_user_info_is_decoded_for_use_and_encoded_to_show() -> None:
    server = find_server("http://a%40b:p%2Fq%3A@myhost", env={})
    assert server.user_info == ("a@b", "p/q:")
    assert server.shown == "http://a%40b:***@myhost:80"
    assert find_server("http://u:p@ss@myhost", env={}).user_info == ("u", "p@ss")
    assert find_server("http://@myhost", env={}).user_info is None


@pytest.mark.parametrize(
    "host",
    [
        "http://u:s3cret@myhost:99999",
        "http://u:s3cret/x@myhost",
        "http://u:s3cret#x@myhost",
        "http://u:s3cret?x@myhost",
        "http://u:s3cret@my host",
        "u:s3cret@ftp://myhost",
        "ftp://u:s3cret@myhost",
        "http://u:s3cret@[::1",
        "http://u:s3cret@",
    ],
)
def test_no_error_shows_a_password(host: str) -> None:
    try:
        server = find_server(host, env={})
    except UsageError as error:
        assert "s3cret" not in str(error)
    else:
        assert "s3cret" not in server.url + server.shown + repr(server)


def test_only_one_key_is_read_and_it_is_never_shown() -> None:
    env = {
        "LLMLAB_API_KEY": " k3y\n",
        "OPENAI_API_KEY": "other",
        "OLLAMA_API_KEY": "other",
        "LLMLAB_SERVE_KEY": "serve",
    }
    server = find_server(env=env)
    assert server.key == "k3y"
    assert "k3y" not in repr(server) + server.shown
    assert find_server(env={"OPENAI_API_KEY": "other", "LLMLAB_API_KEY": ""}).key is None


@pytest.mark.parametrize("key", ["a b", "schlüssel", "a\nb", "a\x00b"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError) as error:
        find_server(env={"LLMLAB_API_KEY": key})
    assert "LLMLAB_API_KEY" in str(error.value)
    assert key not in str(error.value)


@example("http://[::1%")
@example("//@:%@[")
@given(st.text(max_size=40) | st.from_regex(r"(https?://)?[a-z:@%\[\]./0-9 ]{0,30}", fullmatch=True))
def test_any_text_is_an_address_or_a_usage_error(host: str) -> None:
    try:
        server = find_server(host, env={})
    except UsageError as error:
        assert "\n" not in str(error)
        return
    parts = urlsplit(server.url)
    assert parts.scheme in ("http", "https")
    assert parts.hostname
    assert parts.port
    assert parts.username is None
    assert not server.url.endswith("/")


# Proxies

PROXY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("host", "env", "proxy"),
    [
        ("http://127.0.0.1:11434", {"HTTP_PROXY": PROXY}, None),
        ("127.0.0.1", {"HTTP_PROXY": PROXY, "NO_PROXY": "localhost"}, None),
        ("http://[::1]:11434", {"HTTP_PROXY": PROXY}, None),
        ("https://h.example", {"HTTPS_PROXY": PROXY}, PROXY),
        ("0.0.0.0", {"ALL_PROXY": PROXY}, None),
        ("127.9.9.9", {"ALL_PROXY": PROXY}, None),
        ("localhost", {"all_proxy": PROXY}, None),
        ("LocalHost.", {"all_proxy": PROXY}, None),
        ("llm.localhost", {"all_proxy": PROXY}, None),
        ("::ffff:127.0.0.1", {"all_proxy": PROXY}, None),
        ("h.example", {}, None),
        ("h.example", {"HTTP_PROXY": ""}, None),
        ("h.example", {"http_proxy": PROXY}, PROXY),
        ("h.example", {"HTTPS_PROXY": PROXY}, None),
        ("h.example", {"ALL_PROXY": PROXY}, PROXY),
        ("h.example", {"HTTP_PROXY": "http://other:1", "http_proxy": PROXY}, PROXY),
        ("h.example", {"HTTP_PROXY": PROXY, "http_proxy": ""}, None),
        ("h.example", {"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"}, None),
        ("h.example", {"HTTP_PROXY": "127.0.0.1:9"}, PROXY),
        ("h.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ("h.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "h.example"}, None),
        ("a.h.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "other, .h.example"}, None),
        ("a.h.example", {"HTTP_PROXY": PROXY, "no_proxy": "*.h.example"}, None),
        ("noth.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "h.example"}, PROXY),
        ("h.example:1234", {"HTTP_PROXY": PROXY, "NO_PROXY": "h.example:1234"}, None),
        ("h.example:1235", {"HTTP_PROXY": PROXY, "NO_PROXY": "h.example:1234"}, PROXY),
        ("10.1.2.3", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, None),
        ("11.1.2.3", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, PROXY),
        ("10.1.2.3", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.1.2.3"}, None),
        ("[fd00::5]:80", {"HTTP_PROXY": PROXY, "NO_PROXY": "[fd00::5]"}, None),
        ("fd00::5", {"HTTP_PROXY": PROXY, "NO_PROXY": "fd00::/8, nonsense/99,"}, None),
    ],
)
def test_which_proxy_the_environment_means(host: str, env: Mapping[str, str], proxy: str | None) -> None:
    assert find_server(host, env=env).proxy == proxy


@pytest.mark.parametrize(
    "proxy", ["socks5://u:s3cret@h:1", "http://u:s3cret@h:notaport", "http://", "http://[", "ftp://h"]
)
def test_a_proxy_that_cannot_be_used_is_an_error_that_shows_no_secret(proxy: str) -> None:
    with pytest.raises(UsageError, match="ALL_PROXY") as error:
        find_server("h.example", env={"ALL_PROXY": proxy})
    assert "s3cret" not in str(error.value)
    assert find_server("127.0.0.1", env={"ALL_PROXY": proxy}).proxy is None


def test_a_proxys_password_is_not_shown() -> None:
    server = find_server("h.example", env={"HTTP_PROXY": "http://u:s3cret@proxy:3128"})
    assert server.proxy == "http://u:s3cret@proxy:3128"
    assert server.proxy_shown == "http://***@proxy:3128"
    assert "s3cret" not in repr(server)
    assert find_server("h.example", env={"HTTP_PROXY": PROXY}).proxy_shown == PROXY
    assert find_server(env={}).proxy_shown is None


@pytest.mark.parametrize(
    ("name", "local"), [("::1", True), ("::1%lo", True), ("10.0.0.1", False), ("localhost.x", False)]
)
def test_what_is_this_machine(name: str, local: bool) -> None:
    assert is_loopback(name) == local


# Files


def test_where_the_database_is(tmp_path: Path) -> None:
    env = {"LLMLAB_DB": str(tmp_path / "b.db"), "XDG_DATA_HOME": str(tmp_path)}
    assert database_path(tmp_path / "a.db", env) == tmp_path / "a.db"
    assert database_path(None, env) == tmp_path / "b.db"
    assert database_path(None, {"LLMLAB_DB": "", "XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "llmlab" / "llmlab.db"
    assert database_path(Path("~/x.db"), env) == Path.home() / "x.db"


def test_the_folders_are_the_platforms_own(tmp_path: Path) -> None:
    assert data_folder({"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "llmlab"
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "llmlab"
    for folder in (data_folder({"XDG_DATA_HOME": "relative"}), cache_folder({})):
        assert folder.is_absolute()
        assert folder.name == "llmlab" or sys.platform == "win32"


def test_a_home_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="full path"):
        database_path(Path("~nobody-of-that-name/x.db"), {})


# keep_alive


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("-1", -1),
        ("0", 0),
        ("30", 30),
        ("5m", "5m"),
        ("-1m", "-1m"),
        ("1h30m", "1h30m"),
        (None, None),
        ("", None),
        (" '300' ", 300),
        ("+5", 5),
        ("1.5h", "1.5h"),
        (".5s", ".5s"),
        ("250ms", "250ms"),
    ],
)
def test_keep_alive_goes_out_as_the_server_takes_it(said: str | None, sent: int | str | None) -> None:
    assert parse_keep_alive(said) == sent
    assert type(parse_keep_alive(said)) is type(sent)


@pytest.mark.parametrize(
    "said", ["abc", "1d", "5 m", "1.5", "m", "--1", "1h-30m", "٣", "9" * 30, "99999999999", "9999999h"]
)
def test_what_is_no_duration_is_an_error_before_sending(said: str) -> None:
    with pytest.raises(UsageError, match="keep_alive"):
        parse_keep_alive(said)


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, llmlab.settings as s; s.find_server('myhost', env={}); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    loaded = set(out.stdout.split())
    assert not loaded & {"httpx", "platformdirs", "urllib.request", "ssl", "asyncio", "encodings.idna"}
