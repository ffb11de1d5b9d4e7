"""The page in a real browser: ask, stream, numbers, pin, overflow with and without budget, stop, error, guard."""

import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmlab.fake import FakeServer, Figures, Replay
from llmlab.fake.model import PROSE
from tests.threaded import Threaded

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
QUICK = {"decode_gap_ns": 2_000_000, "prefill_tokens_per_s": 100_000.0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield launched
        launched.close()


class Served:
    """A page in front of a fake; what the browser complained about, and what it asked for."""

    def __init__(self, page: Any, url: str, fake: FakeServer) -> None:
        self.page = page
        self.url = url
        self.fake = fake
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self) -> None:
        self.page.goto(self.url)
        self.page.wait_for_selector("body[data-ready]")

    def ask(self, text: str) -> Any:
        number = self.page.locator(".turn").count()
        self.page.fill("#question", text)
        self.page.press("#question", "Enter")
        return self.page.locator(".turn").nth(number)

    def answered(self, text: str) -> Any:
        turn = self.ask(text)
        expect(turn.locator(".numbers")).not_to_be_empty()
        return turn


@pytest.fixture
def serve(browser, tmp_path) -> Iterator[Any]:
    """`serve(figures, num_ctx=…)` opens the page in front of a fake."""
    opened: list[Any] = []

    def start(figures: Figures, context: dict[str, Any] | None = None, replays: Any = (), **settings: Any) -> Served:
        fake = FakeServer(figures, replays).__enter__()
        opened.append(fake)
        threaded = Threaded(fake.url, db=tmp_path / "lab.db", **settings).__enter__()
        opened.append(threaded)
        made = browser.new_context(**(context or {}))
        opened.append(made)
        served = Served(made.new_page(), threaded.url, fake)
        served.page.set_default_timeout(10_000)
        served.threaded = threaded
        return served

    yield start
    for thing in reversed(opened):
        thing.close() if hasattr(thing, "new_page") else thing.__exit__(None, None, None)


def test_an_answer_streams_with_its_numbers_and_asks_nobody_else(serve):
    served = serve(Figures(decode_gap_ns=20_000_000, stop_after=30, prefill_tokens_per_s=50.0))
    served.open()
    turn = served.ask("What is a KV cache?")
    expect(served.page.locator("#ttft.live")).to_be_visible()
    expect(turn).to_have_class("turn streaming")
    expect(turn.locator(".answer > .text")).to_contain_text("The river")
    expect(turn).to_have_class("turn streaming")
    expect(turn.locator(".numbers")).to_contain_text("prompt tokens · ")
    expect(turn.locator(".numbers")).to_contain_text("tok/s")
    read = served.fake.served[0].read_tokens
    expect(served.page.locator("#prompt_tokens")).to_have_text(str(read))
    expect(served.page.locator("#ttft")).not_to_have_class("live")
    decode_s = served.fake.served[0].decode_ns / 1e9
    expect(served.page.locator("#speed")).to_have_text(f"{served.fake.served[0].output_tokens / decode_s:.0f}")
    expect(served.page.locator("#status")).to_contain_text("prompt tokens")
    expect(served.page.locator("#question")).to_be_focused()
    assert served.complaints == []
    assert all(url.startswith(served.url) for url in served.asked)


def test_the_window_fills_overflows_and_a_pin_keeps_what_matters(serve):
    served = serve(Figures(**QUICK, stop_after=20), num_ctx=512)
    served.open()
    page = served.page
    told = served.answered("Remember this: the code word is BLUEBIRD.")
    expect(page.locator(".legend .kept dd")).not_to_have_text("0")
    for _ in range(4):
        served.answered(PROSE * 3)
    expect(told).to_have_class("turn dropped")
    expect(told.locator(".mark-dropped")).to_be_visible()
    expect(page.locator(".legend .dropped dd")).not_to_have_text("0")
    asked = served.answered("What was the code word?")
    expect(asked.locator(".answer > .text")).not_to_contain_text("BLUEBIRD")

    page.locator("label.switch").click()
    expect(page.locator(".window")).to_have_class("window bad")
    expect(page.locator("#window-state")).to_contain_text("too many")
    asked = served.answered("And what was the code word?")
    expect(asked.locator(".answer > .text")).not_to_contain_text("BLUEBIRD")
    expect(asked.locator(".notes")).to_contain_text("the oldest part of this conversation is gone")

    page.locator("label.switch").click()
    told.locator(".pin").click()
    expect(told.locator(".pin")).to_have_attribute("aria-pressed", "true")
    expect(told).to_have_class("turn pinned")
    expect(page.locator(".legend .pinned dd")).not_to_have_text("0")
    expect(page.locator(".window")).to_have_class("window")
    asked = served.answered("What was the code word, please?")
    expect(asked.locator(".answer > .text")).to_contain_text("BLUEBIRD")
    assert served.complaints == []


def test_stopping_leaves_the_part_that_came_and_frees_the_server(serve):
    served = serve(Figures(decode_gap_ns=20_000_000, fault="endless"))
    served.open()
    turn = served.ask("Go on for ever")
    expect(turn.locator(".answer > .text")).to_contain_text("The river")
    served.page.locator("#stop").click()
    expect(turn.locator(".notes")).to_have_text("stopped")
    expect(served.page.locator("#send")).to_be_visible()
    text = turn.locator(".answer > .text").inner_text()
    second = served.ask("Again")
    expect(second.locator(".answer > .text")).to_contain_text("The river")
    served.page.keyboard.press("Escape")
    expect(second.locator(".notes")).to_have_text("stopped")
    assert served.fake.served[0].gone
    assert text in served.fake.served[1].body["messages"][1]["content"]


def test_an_error_is_said_and_the_question_can_be_asked_again(serve):
    served = serve(Figures(**QUICK, stop_after=5, faults={0: "refuse", 1: "die"}))
    served.open()
    turn = served.ask("hi")
    expect(turn.locator(".notes .error")).to_contain_text("the fake was told to refuse")
    turn.locator(".again").click()
    turn = served.page.locator(".turn").last
    expect(turn.locator(".notes .error")).to_contain_text("broke off in mid-answer")
    expect(served.page.locator(".turn")).to_have_count(1)
    turn.locator(".again").click()
    turn = served.page.locator(".turn").last
    expect(turn.locator(".numbers")).not_to_be_empty()
    assert [len(call.body["messages"]) for call in served.fake.served] == [1, 1, 1]


def test_what_does_not_fit_is_said_before_it_is_sent(serve):
    served = serve(Figures(**QUICK, stop_after=5), num_ctx=512)
    served.open()
    served.page.fill("#question", PROSE * 30)
    expect(served.page.locator("#window-state")).to_contain_text("Nothing was sent")
    served.page.press("#question", "Enter")
    expect(served.page.locator(".turn .error")).to_contain_text("tokens")
    assert served.fake.served == []


def test_a_llmlab_that_is_gone_is_an_error_not_a_silence(serve):
    served = serve(Figures(**QUICK, stop_after=5))
    served.open()
    served.threaded.__exit__(None, None, None)
    turn = served.ask("hi")
    expect(turn.locator(".error")).to_contain_text("Is it still running?")


def test_the_conversation_survives_a_reload_and_new_forgets_it(serve):
    served = serve(Figures(**QUICK, stop_after=5))
    served.open()
    served.answered("first").locator(".pin").click()
    served.page.reload()
    served.page.wait_for_selector("body[data-ready]")
    expect(served.page.locator(".turn")).to_have_count(1)
    expect(served.page.locator(".turn .pin")).to_have_attribute("aria-pressed", "true")
    served.answered("second")
    assert [m["content"] for m in served.fake.served[-1].body["messages"]][::2] == ["first", "second"]
    served.page.locator("#new").click()
    expect(served.page.locator(".turn")).to_have_count(0)
    served.answered("third")
    assert len(served.fake.served[-1].body["messages"]) == 1


def test_everything_is_reached_by_the_keyboard_and_has_a_name(serve):
    served = serve(Figures(**QUICK, stop_after=5))
    served.open()
    served.answered("hi")
    page = served.page
    page.evaluate("document.activeElement.blur()")
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
        )
    assert {"skip", "model", "num_ctx", "budget", "new", "system", "pin", "question", "send"} <= {*seen, "system"}
    expect(page.locator("#track")).to_have_attribute("aria-label", re.compile("Window of 4,096 tokens: kept"))
    snapshot = page.locator("body").aria_snapshot()
    for name in ('combobox "Model"', 'combobox "Window"', 'switch "Budget"', 'button "Pin"', 'textbox "Your question"'):
        assert name in snapshot
    assert "Window of 4,096 tokens" in snapshot
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button,input,select,textarea')].filter(e => !e.closest('dialog,template')"
        " && !(e.innerText || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.outerHTML)"
    )
    assert unnamed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(390, 844), (1280, 800)])
def test_it_fits_a_phone_and_a_desk_and_every_text_can_be_read(serve, scheme, size):
    viewport = {"width": size[0], "height": size[1]}
    served = serve(Figures(**QUICK, stop_after=5), {"viewport": viewport, "color_scheme": scheme}, num_ctx=512)
    served.open()
    served.answered("```\n" + "wide " * 60 + "\n```" + "long" * 100)
    page = served.page
    assert page.evaluate(TOO_WIDE) == []
    for selector in ("#question", "#send", "#track", "#budget", "#new"):
        box = page.locator(selector).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
    assert page.evaluate(CONTRASTS) == []


TOO_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter((e) => e.getBoundingClientRect().right > innerWidth && !e.closest('pre, .visually-hidden, option'))
  .map((e) => `${e.tagName}.${e.className}`)"""
CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return rgb(getComputedStyle(document.body).backgroundColor);
  };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('.visually-hidden, .zero, .skip, option')) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${e.tagName}.${e.className}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""


MARKUP = (
    "<img/src=x/onerror=document.title='owned'> <b>no</b> **yes** `<i>` *so* 2*3*4\n```html\n<script>1</script>\n```"
)


def test_a_model_cannot_write_into_the_page(serve):
    line = {"message": {"role": "assistant", "content": MARKUP}, "done": True, "done_reason": "stop"}
    served = serve(Figures(**QUICK), replays=[Replay(chunks=((0, json.dumps(line).encode() + b"\n"),))])
    served.open()
    text = served.answered("hi").locator(".answer > .text")
    expect(text).to_contain_text("<img/src=x/onerror=document.title='owned'> <b>no</b> yes <i> so 2*3*4")
    expect(text.locator("pre code")).to_have_text("<script>1</script>")
    expect(text.locator("strong")).to_have_text("yes")
    assert served.page.locator(".answer img, .answer script, .answer b, .answer i").count() == 0
    assert served.page.title() == "llmlab"


def test_a_key_is_asked_for_and_used(serve, monkeypatch):
    monkeypatch.setenv("LLMLAB_SERVE_KEY", "word")
    served = serve(Figures(**QUICK, stop_after=5))
    served.page.goto(served.url)
    served.page.fill("#key", "word")
    served.page.press("#key", "Enter")
    served.page.wait_for_selector("body[data-ready]")
    served.answered("hi")


class Stranger(http.server.BaseHTTPRequestHandler):
    """A page of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>stranger</title>")

    def log_message(self, *_: Any) -> None:
        pass


ATTACK = """async (url) => {
  const tried = {};
  const attempt = async (name, work) => { tried[name] = await work().then((text) => text, () => "nothing"); };
  const body = JSON.stringify({ message: "hi", model: "fake:1b", messages: [{ role: "user", content: "hi" }] });
  for (const path of ["/chat", "/api/chat", "/v1/chat/completions", "/window"])
    for (const type of ["application/json", "text/plain"])
      await attempt(`${path} ${type}`, async () =>
        (await fetch(url + path, { method: "POST", body, headers: { "content-type": type } })).text());
  for (const path of ["/", "/info", "/metrics", "/api/tags", "/openapi.json"])
    await attempt(path, async () => (await fetch(url + path)).text());
  await attempt("opaque", async () => (await fetch(url + "/chat", { method: "POST", mode: "no-cors", body })).text());
  await attempt("script", () => new Promise((ok, no) => {
    const script = Object.assign(document.createElement("script"), { src: url + "/static/page.js" });
    script.onload = () => ok("loaded"); script.onerror = no; document.head.append(script);
  }));
  await attempt("frame", () => new Promise((ok, no) => {
    const frame = Object.assign(document.createElement("iframe"), { src: url });
    frame.onload = () => { try { ok(frame.contentDocument.title); } catch { no(); } };
    document.body.append(frame);
  }));
  return tried;
}"""


def test_a_page_of_another_origin_gets_nothing(serve):
    served = serve(Figures(**QUICK, stop_after=5))
    before = list(served.fake.requests)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        for host in ("127.0.0.1", "localhost"):
            served.page.goto(f"http://{host}:{stranger.server_port}/")
            tried = served.page.evaluate(ATTACK, served.url)
            assert {name: got for name, got in tried.items() if got not in ("nothing", "")} == {}
        stranger.shutdown()
    assert served.fake.requests == before


def test_a_name_that_is_rebound_to_us_gets_nothing(serve, tmp_path):
    served = serve(Figures(**QUICK, stop_after=5))
    before = list(served.fake.requests)
    port = served.url.rpartition(":")[2]
    mapped = served.page.context.browser.browser_type.launch(
        executable_path=str(CHROMIUM), args=[*FLAGS, "--host-resolver-rules=MAP evil.example 127.0.0.1"]
    )
    page = mapped.new_page()
    response = page.goto(f"http://evil.example:{port}/")
    assert response.status == 403
    assert page.locator("#question").count() == 0
    mapped.close()
    assert served.fake.requests == before
