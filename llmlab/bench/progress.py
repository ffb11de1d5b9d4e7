"""Progress on stderr: what is measured, since when, and how long it will take; one line that moves on a terminal."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from llmlab.printable import printable_line

TICK_S = 1.0


class Progress:
    """Says the step under way; on a terminal the seconds run on, elsewhere each step is one line.

    A thread of its own writes the line once a second, a few microseconds each, so that a long prefill does not look
    stuck and nothing runs on the measuring loop. `still()` keeps it silent where even that is too much.
    """

    def __init__(self, err: TextIO | None = None) -> None:
        self.err = err if err is not None else sys.stderr
        self.moving = self.err.isatty()
        self.started_s = time.monotonic()
        self.expected_s: float | None = None
        self.text = ""
        self.quiet = False
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> "Progress":
        if self.moving:
            self.thread = threading.Thread(target=self._run, name="llmlab-progress", daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if self.thread:
            self.thread.join()
        self._clear()

    def step(self, text: str) -> None:
        """What is measured from now on: experiment and cell."""
        if text == self.text:
            return
        self.text = text
        if self.moving:
            self._draw()
        else:
            self._write(f"{self.line()}\n")

    def expect(self, remaining_s: float) -> None:
        """The whole run will take what it took so far and `remaining_s` more."""
        self.expected_s = time.monotonic() - self.started_s + remaining_s

    def note(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        self._write(f"{printable_line(text)}\n")

    @contextmanager
    def still(self) -> Iterator[None]:
        """Write nothing meanwhile."""
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make room for what others print."""
        self._clear()
        with self.still():
            yield

    def line(self) -> str:
        elapsed = clock(time.monotonic() - self.started_s)
        expected = f" of about {clock(self.expected_s)}" if self.expected_s else ""
        return f"[{elapsed}{expected}] {self.text}"

    def _run(self) -> None:
        while not self.ended.wait(TICK_S):
            if not self.quiet:
                self._draw()

    def _draw(self) -> None:
        if self.text:
            self._write(f"\r\x1b[2K{self.line()}")

    def _clear(self) -> None:
        if self.moving:
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        with self.lock:
            try:
                self.err.write(text)
                self.err.flush()
            except (OSError, ValueError):
                self.quiet = True  # a closed terminal must not end the measuring


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
