"""As an attacker would: secrets are looked for wherever anything is written, and everything that a server may choose
the text of tries to drive the terminal, the spreadsheet and the page it is shown in.
"""

import base64
import csv
import io
import json
import re
import stat
import sys
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest

from llmlab.client import ChatOptions, Client
from llmlab.errors import LabError
from llmlab.listing import Format, print_listing
from llmlab.messages import Message
from llmlab.settings import find_server
from tests.played import PlayedServer, Response, answer, done_line, json_answer, refusal
from tests.playing import Playing
from tests.serving import asking, ollama_pages, serving

SECRET = 's3cr3t p@ss"/wörd'
KEY = "k3y-ABCDEFG-123"
SERVE_KEY = "serve-k3y-xyz"
PAIR = base64.b64encode(f"tester:{SECRET}".encode()).decode()
TOKEN = base64.b64encode(f"{KEY}:".encode()).decode()
FORMS = (SECRET, quote(SECRET), quote(SECRET, safe=""), json.dumps(SECRET)[1:-1], KEY, SERVE_KEY)
NEEDLES = (*FORMS, PAIR, PAIR.rstrip("="), TOKEN.rstrip("="))


def address(mode: str, url: str) -> dict[str, str]:
    """The environment that names the server with a secret: a password, a token in its place, or a key."""
    place = url.removeprefix("http://")
    user = {"password": f"tester:{quote(SECRET, safe='')}@", "token": f"{KEY}@", "key": ""}[mode]
    return {"OLLAMA_HOST": f"http://{user}{place}", "LLMLAB_SERVE_KEY": SERVE_KEY} | (
        {"LLMLAB_API_KEY": KEY} if mode == "key" else {}
    )


def leaks(*texts: str) -> list[str]:
    return [needle for needle in NEEDLES for text in texts if needle in text]


def leaking_files(folder: Path) -> list[tuple[str, str]]:
    files = [(file, file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
    assert files
    return [(file.name, needle) for file, data in files for needle in NEEDLES if needle.encode() in data]


def repeats(mode: str) -> str:
    """What a server says that repeats the credentials it was sent, in every form."""
    if mode == "password":
        return f"no: Basic {PAIR} {SECRET} {quote(SECRET, safe='')} {quote(SECRET)}"
    return f"no: Bearer {KEY} {TOKEN}" if mode == "token" else f"no: Bearer {KEY}"


def telling(mode: str) -> dict[str, Response]:
    """Answers of servers that tell what they were sent."""
    words = repeats(mode)
    location = f"http://tester:{quote(SECRET, safe='')}@h.example/{quote(words)}/api/chat"
    return {
        "json": refusal(401, {"error": words}),
        "nested": refusal(500, {"error": json.dumps({"error": {"message": words}})}),
        "text": {"status": 400, "headers": {"content-type": "text/plain"}, "body": [{"text": words}]},
        "html": {"status": 502, "headers": {"content-type": "text/html"}, "body": [{"text": f"<p>{words}</p>"}]},
        "other service": {"headers": {"content-type": "text/plain"}, "body": [{"text": words}]},
        "in the stream": answer("a", {"line": {"error": words}}),
        "redirect": {"status": 301, "headers": {"location": location}, "body": []},
        "not HTTP": answer("a", {"text": words}, end="reset"),
        "gone": {"drop_connection_without_response": True, "always": True},
    }


@pytest.mark.parametrize("mode", ["password", "token", "key"])
def test_a_secret_is_sent_and_written_nowhere(lab, tmp_path, mode) -> None:
    said = []

    def run(*args: str, env: dict[str, str]) -> None:
        result = lab(*args, env=env)
        said.append(result.stdout + result.stderr)

    with Playing({**answer("fine", done_line()), "always": True}) as server:
        env = address(mode, server.url)
        run("chat", "hi", "--keep-text", env=env)
        run("chat", "hi", "--json", env=env)
        run("models", env=env)
        run("doctor", env=env)
        bench = ("bench", "prompt_length", "--quick", "--sizes", "100", "--repeat", "1", "--tag", "t")
        run(*bench, env=env)
        sent = {request.headers.get("authorization") for request in server.requests}
        credentials = {"password": f"Basic {PAIR}", "token": f"Basic {TOKEN}", "key": f"Bearer {KEY}"}
        assert sent == {credentials[mode]}
    for response in telling(mode).values():
        with Playing(response) as server:
            run("chat", "hi", env=address(mode, server.url))
    for page in ("GET /api/version", "GET /api/tags", "POST /api/show"):
        pages = [p for p in ollama_pages() if p["route"] != page]
        with Playing({**refusal(401, {"error": repeats(mode)}), "route": page, "always": True}, pages=pages) as server:
            run("chat", "hi", env=address(mode, server.url))
    gone = address(mode, "http://127.0.0.1:9")
    run("chat", "hi", env=gone)
    run("chat", "hi", env=address(mode, "http://127.0.0.1:99999"))
    run("serve", "--port", "0", env=gone)
    proxy = {"HTTP_PROXY": f"http://tester:{quote(SECRET, safe='')}@127.0.0.1:9", "OLLAMA_HOST": "http://h.example"}
    run("chat", "hi", env=gone | proxy)
    run("doctor", env=gone | proxy)
    for form in ("table", "md", "csv", "json", "html"):
        run("report", "t", "--format", form, "--output", str(tmp_path / f"report.{form}"), env=gone)
    for form in ("table", "csv", "json"):
        run("runs", "--format", form, env=gone)
    run("export", "t", "--output", str(tmp_path / "export.db"), "--texts", env=gone)
    assert all("Traceback" not in text for text in said)
    assert leaks(*said) == [] and leaking_files(tmp_path) == []
    if mode == "password":
        assert any("tester:***@" in text for text in said)


@pytest.mark.parametrize("mode", ["password", "token", "key"])
async def test_no_error_no_repr_and_no_traceback_holds_a_secret(mode) -> None:
    for name, response in telling(mode).items():
        async with PlayedServer([*ollama_pages(), response]) as upstream:
            server = find_server(env=address(mode, upstream.url))
            async with Client(server) as client:
                stream = client.chat([Message("user", "hi")], ChatOptions(model="demo:1b"))
                with pytest.raises(LabError) as raised:
                    async with stream:
                        async for _ in stream:
                            pass
                shown = [*traceback.format_exception(raised.value), str(raised.value), repr(raised.value)]
                shown += [
                    repr(server),
                    str(server),
                    repr(client),
                    repr(stream),
                    repr(stream.call),
                    stream.call.error or "",
                ]
                assert leaks(*shown) == [], name


async def test_a_served_llmlab_shows_no_secret(monkeypatch, tmp_path) -> None:
    async with PlayedServer([*ollama_pages(), *telling("password").values()]) as upstream:
        for name, value in address("password", upstream.url).items():
            monkeypatch.setenv(name, value)
        async with serving("") as service, asking(service) as client:
            allowed = {"authorization": f"Bearer {SERVE_KEY}"}
            for path in ("/", "/info", "/healthz", "/metrics", "/openapi.json", "/static/page.js"):
                response = await client.get(path, headers=allowed)
                assert response.status_code == 200
                assert leaks(response.text, str(response.headers)) == []
            for _ in telling("password"):
                response = await client.post("/chat", json={"message": "hi"}, headers=allowed)
                assert leaks(response.text, str(response.headers)) == []
            assert not [r for r in upstream.requests if SERVE_KEY in str(r.headers)]
    assert leaking_files(tmp_path) == []


# Text that others choose

ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e\r\n[bold]x[/bold] :bug: <script>alert(1)</script>|`=cmd()\\"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]")


def hostile_pages() -> list[Response]:
    name = f"evil{ESCAPES}"
    details = {"quantization_level": ESCAPES, "family": ESCAPES, "parameter_size": ESCAPES}
    tag = {"name": name, "model": name, "digest": ESCAPES, "details": details, "modified_at": ESCAPES}
    info = {"demo.context_length": 8192}
    return [
        json_answer({"version": f"9{ESCAPES}"}, "GET /api/version"),
        json_answer({"models": [tag, {"name": "other"}]}, "GET /api/tags"),
        json_answer({"models": [{"name": name, "model": name, "context_length": 2048}]}, "GET /api/ps"),
        json_answer({"model_info": info, "capabilities": ["completion", ESCAPES]}, "POST /api/show"),
    ]


def test_nothing_that_others_say_drives_a_terminal(lab, tmp_path) -> None:
    said: dict[tuple[str, ...], str] = {}

    def run(*args: str) -> None:
        result = lab(*args)
        said[args] = result.stdout + result.stderr

    ending = done_line(f"stop{ESCAPES}")
    with Playing({**answer(f"hello {ESCAPES}", ending), "always": True}, pages=hostile_pages()) as server:
        host = ("--host", server.url)
        run("chat", f"hi {ESCAPES}", *host, "--tag", f"=t{ESCAPES}")
        run("chat", "hi", "--json", *host)
        for form in ("table", "csv", "json"):
            run("models", *host, "--format", form)
        run("doctor", *host)
        run("bench", "prompt_length", "--quick", "--sizes", "100", "--repeat", "1", *host, "--tag", f"=t{ESCAPES}")
    words: list[object] = [ESCAPES, {"error": ESCAPES}, {"error": {"message": ESCAPES}}, {"error": {ESCAPES: ESCAPES}}]
    odd: list[Response] = [refusal(500, text) for text in words]
    odd += [answer("a", {"line": {"error": ESCAPES}}), answer("a", {"text": f"{ESCAPES}\n"})]
    odd += [
        {"status": 301, "headers": {"location": "http://x/\x1b[31m"}, "body": []},
        refusal(429, None, retry_after="\x1b"),
    ]
    for number, response in enumerate(odd):
        with Playing(response, pages=hostile_pages()) as server:
            run("chat", f"hi {number}", "--host", server.url)
    for form in ("table", "md", "csv", "json", "html"):
        run("report", "--format", form)
    for form in ("table", "csv", "json"):
        run("runs", "--format", form)
    for args in (("report", ESCAPES), ("chat", "hi", "-m", ESCAPES, "--host", "127.0.0.1:9"), ("merge", ESCAPES)):
        run(*args)
    for args in (
        ("chat", "hi", "--host", ESCAPES),
        ("chat", "hi", "--host", "127.0.0.1:9", "-o", "\x1b[31m"),
        ("runs", "--db", "/\x1b[31m/x\n"),
    ):
        run(*args)
    run("report", "--output", "/nowhere/\x1b[31m")
    found = {args: OBEYED.search(text) for args, text in said.items()}
    assert {args: match for args, match in found.items() if match} == {}
    assert all("Traceback" not in text for text in said.values())
    (turn,) = [json.loads(text.splitlines()[0]) for args, text in said.items() if "--json" in args]
    assert turn["answer"] == f"hello {ESCAPES}", "JSON holds it as it was"
    for args in [args for args in said if args[-1] == "csv"]:
        rows = list(csv.reader(io.StringIO(said[args])))
        assert len({len(row) for row in rows}) == 1, args
        assert not [text for row in rows for text in row if text.lstrip()[:1] in ("=", "+", "@")]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_listing_on_a_terminal_shows_names_as_they_are_written() -> None:
    out = Screen()
    print_listing([{"model": f"a[/INST]{ESCAPES}"}], ["model"], Format.table, out)
    shown = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert not OBEYED.search(shown)
    assert "a[/INST]" in shown and ":bug:" in shown and "[bold]x" in "".join(shown.split("\n"))


@pytest.mark.skipif(sys.platform == "win32", reason="a Unix terminal")
def test_what_was_typed_is_kept_only_when_asked_and_for_its_owner_alone(tmp_path) -> None:
    pytest.importorskip("pexpect")
    from tests.test_terminal import Terminal

    file = tmp_path / "data" / "llmlab" / "chat_history"
    with Playing({**answer("fine", done_line()), "always": True}) as server:
        for options in ((), ("--keep-text",)):
            terminal = Terminal("--host", server.url, *options)
            terminal.type("my secret plan")
            terminal.expect("to first token")
            assert terminal.leave() == 0
            assert file.exists() == bool(options)
    assert "my secret plan" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "lab.db").stat().st_mode) == 0o600
