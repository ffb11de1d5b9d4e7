"""Bytes cut into lines, on newlines only, however the network cut them."""

import json
from collections.abc import Callable
from typing import Any

from llmlab.errors import ServerError

# The heart of json.loads, without its search for white space around the value: we strip.
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]

LONGEST_LINE = 64 * 1024 * 1024


class Lines:
    """Collects chunks and gives out whole lines, stripped of white space; empty lines are left out.

    Only 0x0A ends a line: U+0085, U+2028 and U+2029 may stand inside JSON text.
    """

    __slots__ = ("_rest", "_size", "clean")

    def __init__(self) -> None:
        self.clean = True  # nothing is kept: the next chunk begins a line
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        if b"\n" not in data:
            self._keep(data)
            return []
        head, *middle, tail = data.split(b"\n")
        lines = [b"".join((*self._rest, head)), *middle]
        self._rest, self._size, self.clean = [], 0, True
        if tail:
            self._keep(tail)
        return [line for line in map(bytes.strip, lines) if line]

    def rest(self) -> bytes:
        """What followed the last newline; empty the second time."""
        line = b"".join(self._rest).strip()
        self._rest, self._size, self.clean = [], 0, True
        return line

    def _keep(self, data: bytes) -> None:
        self._rest.append(data)
        self.clean = False
        self._size += len(data)
        if self._size > LONGEST_LINE:
            raise ServerError(f"the server sent a line of over {LONGEST_LINE >> 20} MiB", "Check the address")


def parse(line: bytes) -> Any:
    """The JSON value of `line`; None where it is not JSON. Bytes that are not UTF-8 become U+FFFD."""
    try:
        text = line.strip().decode("utf-8", "replace")
        value, end = _scan(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return None
    return value if end == len(text) else None


def start_of(line: bytes) -> str:
    """The beginning of a line, to quote."""
    return line[:80].decode("utf-8", "replace")
