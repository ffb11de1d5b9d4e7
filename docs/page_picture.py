"""Take pictures of the page of `llmlab serve`: light for the README; with `--all` dark and as wide as a phone too.

    python docs/page_picture.py [docs/img] [--all] [--chromium /usr/bin/chromium]

The conversation is played by the fake server with a window of 320 tokens, so that it overflows after a few turns: the
first one is pinned, the long one after it is dropped by the budget.
"""

import argparse
import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from llmlab.budget import fit
from llmlab.fake import FakeServer, Figures, Replay
from llmlab.messages import Message
from llmlab.serve.server import opened
from llmlab.serve.settings import ServeSettings
from llmlab.target import Choice

TALK = (
    (
        "Remember this: the code word is BLUEBIRD.",
        "I will remember that the code word is **BLUEBIRD**.",
    ),
    (
        "Why does the first token take so much longer than all the others?",
        "Before a model can write anything it has to read. Every token of the prompt passes through all layers once "
        "and leaves keys and values behind: that is the *prefill*, and it grows with the prompt. From then on each "
        "token costs the same small amount.",
    ),
    (
        "How large does that cache get for a small model?",
        "For each token and layer it holds one key and one value vector. With 30 layers, 3 heads of 64 numbers and 2 "
        "bytes each that is\n\n```python\n2 * 30 * 3 * 64 * 2  # bytes a token\n```\n\nabout 23 kB for each token.",
    ),
    (
        "What was the code word that I told you at the start?",
        "The code word is **BLUEBIRD**. You pinned that turn, so the budget kept it and left out the long one after "
        "it.",
    ),
)
NUM_CTX, RESERVE = 320, 96
WIDTHS = {"wide": (1180, 1000), "phone": (390, 844)}


def replay(text: str, prompt_tokens: int, gap_ms: int = 24) -> Replay:
    """`text` word by word, with the figures of a small model on a laptop."""
    words = text.split(" ")
    lines = [
        (
            (180 + gap_ms * number) * 1_000_000,
            {"message": {"role": "assistant", "content": word if number == 0 else f" {word}"}, "done": False},
        )
        for number, word in enumerate(words)
    ]
    figures = {
        "done": True,
        "done_reason": "stop",
        "total_duration": (200 + gap_ms * len(words)) * 1_000_000,
        "load_duration": 3_000_000,
        "prompt_eval_count": prompt_tokens,
        "prompt_eval_duration": 170_000_000,
        "eval_count": len(words) * 4 // 3,
        "eval_duration": gap_ms * len(words) * 1_000_000,
    }
    lines.append((lines[-1][0], {"message": {"role": "assistant", "content": ""}, **figures}))
    return Replay(chunks=tuple((at_ns, json.dumps(line).encode() + b"\n") for at_ns, line in lines))


def replays() -> list[Replay]:
    """The answers of the talk, each with the prompt tokens that our own budget leaves of the conversation."""
    history: list[Message] = []
    played = []
    for question, answer in TALK:
        history.append(Message("user", question))
        sent = fit([m.pin(place < 2) for place, m in enumerate(history)], NUM_CTX - RESERVE)
        played.append(replay(answer, sent.used))
        history.append(Message("assistant", answer))
    return played


@contextmanager
def served(upstream: str, folder: Path) -> Iterator[str]:
    """llmlab in front of `upstream`, in a thread with a loop of its own; its address."""
    ready, over, found = threading.Event(), asyncio.Event(), []

    async def run() -> None:
        settings = ServeSettings(
            choice=Choice(host=upstream), port=0, db=folder / "lab.db", num_ctx=NUM_CTX, reserve=RESERVE, grace_s=0
        )
        async with opened(settings, lambda line: None) as service:
            found.extend([service.url, asyncio.get_running_loop()])
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait(20)
    try:
        yield found[0]
    finally:
        found[1].call_soon_threadsafe(over.set)
        thread.join()


@contextmanager
def chromium(executable: str) -> Iterator[Browser]:
    """A headless Chromium that asks nobody but our own server."""
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=flags)
        yield browser
        browser.close()


def talk(page: Page, url: str) -> None:
    """Hold the conversation; pin the first turn as soon as it is answered."""
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    for number, (question, _) in enumerate(TALK):
        page.fill("#question", question)
        page.press("#question", "Enter")
        turn = page.locator(".turn").nth(number)
        turn.locator(".numbers:not(:empty)").wait_for()
        if number == 0:
            turn.locator(".pin").click()
    page.wait_for_timeout(700)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "img", help="where they go")
    parser.add_argument("--all", action="store_true", help="every scheme and width")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    wanted = [(scheme, name) for scheme in ("light", "dark") for name in WIDTHS] if args.all else [("light", "wide")]
    with tempfile.TemporaryDirectory() as folder, chromium(args.chromium) as browser:
        os.environ["XDG_DATA_HOME"] = folder
        for scheme, name in wanted:
            width, height = WIDTHS[name]
            with FakeServer(Figures(model="qwen2.5:3b"), replays()) as fake, served(fake.url, Path(folder)) as url:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                talk(page, url)
                page.screenshot(path=args.folder / ("page.png" if not args.all else f"page-{scheme}-{name}.png"))
                page.close()


if __name__ == "__main__":
    main()
