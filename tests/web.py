"""What the tests of pages share: reading a page's tables, and driving a headless Chromium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

CHROMIUM = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


class Page(HTMLParser):
    """The tables of a page as rows of cell texts, its links, tags, the names of their attributes, and all its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.links: dict[str, str] = {}
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._link = ""
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True
        elif tag == "a":
            self._link = dict(attrs).get("href") or ""
            self.links[self._link] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False
        elif tag == "a":
            self._link = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.tables[-1][-1][-1] += data
        if self._link:
            self.links[self._link] += data


@contextmanager
def chromium() -> Iterator["BrowserContext"]:
    """A fresh, empty browser."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM))
        try:
            yield browser.new_context()
        finally:
            browser.close()
