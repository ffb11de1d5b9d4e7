"""Progress of a slow start: what is being done, and how far a download has come."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Step:
    """`text` says what is being done; `done_bytes` of `total_bytes` where it is a download."""

    text: str
    done_bytes: int | None = None
    total_bytes: int | None = None


Report = Callable[[Step], None]


def silent(step: Step) -> None:
    """Report to nobody."""


class Lines:
    """Reports to a stream: a line that moves on a terminal, one plain line per step elsewhere."""

    width = 24

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.last = ""

    def __call__(self, step: Step) -> None:
        if self.terminal:
            self.stream.write(f"\r\x1b[K{step.text}{self.bar(step)}")
            if step.done_bytes is None or step.done_bytes == step.total_bytes:
                self.stream.write("\n")
        elif step.text != self.last:
            self.stream.write(f"{step.text}\n")
        self.last = step.text
        self.stream.flush()

    def bar(self, step: Step) -> str:
        if step.done_bytes is None or not step.total_bytes:
            return ""
        share = min(1.0, step.done_bytes / step.total_bytes)
        full = round(share * self.width)
        done, total = step.done_bytes / 1e6, step.total_bytes / 1e6
        return f" [{'█' * full}{'·' * (self.width - full)}] {done:.0f} of {total:.0f} MB"
