"""Repairs the text of an answer while it streams: halves of characters, and reasoning that came as answer."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from llmlab.client.events import Piece

OPEN, CLOSE = "<think>", "</think>"

_SURROGATE = re.compile("[\ud800-\udfff]")


def whole_characters(text: str) -> str:
    """`text` with surrogate pairs joined and each half left alone replaced by U+FFFD, so that it can be encoded."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Halves:
    """Joins the halves of a surrogate pair that arrived in neighbouring pieces."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        text, self.held = self.held + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self.held = text[:-1], text[-1]
        return whole_characters(text)

    def rest(self) -> str:
        text, self.held = self.held, ""
        return whole_characters(text)


class CodeMarks(NamedTuple):
    """Follows Markdown far enough to know whether the next character stands in code."""

    fenced: bool = False
    head: str = ""  # the first three characters of the line
    ticks: int = 0  # back quotes on the line

    @property
    def in_code(self) -> bool:
        return self.fenced or self.head == "```" or self.ticks % 2 == 1

    def after(self, text: str) -> "CodeMarks":
        fenced, head, ticks = self
        for number, part in enumerate(text.split("\n")):
            if number:
                fenced ^= head == "```"
                head, ticks = "", 0
            if len(head) < 3:
                head = (head + part).lstrip()[:3]
            ticks += part.count("`")
        return CodeMarks(fenced, head, ticks)


class Deltas:
    """Takes the texts of an answer as they came and gives out pieces; reasoning in <think> tags becomes thinking.

    A tag in code stays what it is. Text after a tag that is never closed streams as thinking; if the answer then ends
    by itself, the tag was a literal and everything from it on comes once more, as content.
    """

    __slots__ = (
        "_answer",
        "_code",
        "_content",
        "_held",
        "_inside",
        "_scanned",
        "_thinking",
        "_thoughts",
        "_trim",
        "plain",
    )

    def __init__(self) -> None:
        # Nothing is held back, no tag is open: ASCII without "<" may pass as it is.
        self.plain = True
        self._content = Halves()
        self._thinking = Halves()
        self._answer: list[str] = []
        self._thoughts: list[str] = []
        self._code = CodeMarks()
        self._scanned = 0
        self._held = ""
        self._inside: int | None = None  # index into _thoughts where the open tag's text starts
        self._trim = False

    @property
    def text(self) -> str:
        """The answer so far, without reasoning."""
        return "".join(self._answer)

    @property
    def thinking(self) -> str:
        """The reasoning so far."""
        return "".join(self._thoughts)

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """The pieces that `piece` completes; none where a character or a tag may still be cut in two."""
        text = piece.text
        if self.plain and text.isascii() and "<" not in text:
            (self._answer if piece.kind == "content" else self._thoughts).append(text)
            return (piece,)
        if piece.kind == "thinking":
            pieces = self._think(self._thinking.feed(text))
        else:
            pieces = self._split(self._content.feed(text))
        self.plain = not (
            self._held or self._trim or self._inside is not None or self._content.held or self._thinking.held
        )
        return pieces

    def rest(self, cut: bool) -> list[Piece]:
        """The pieces still held back, at the end; `cut` says that the answer did not end by itself."""
        pieces = self._think(self._thinking.rest())
        text = self._held + self._content.rest()
        self._held = ""
        if self._inside is None:
            return pieces + self._say(text)
        if cut:
            return pieces + self._think(text)
        literal = OPEN + "".join(self._thoughts[self._inside :]) + text
        del self._thoughts[self._inside :]
        self._inside = None
        return pieces + self._say(literal)

    def _say(self, text: str) -> list[Piece]:
        if self._trim:
            text = text.lstrip()
        if not text:
            return []
        self._trim = False
        self._answer.append(text)
        return [Piece("content", text)]

    def _think(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._thoughts.append(text)
        return [Piece("thinking", text)]

    def _split(self, text: str) -> list[Piece]:
        text, self._held = self._held + text, ""
        pieces: list[Piece] = []
        at = 0
        while at < len(text):
            outside = self._inside is None
            tag = OPEN if outside else CLOSE
            found = self._find_open(text, at) if outside else find_tag(text, CLOSE, at)
            pieces += self._say(text[at:found]) if outside else self._think(text[at:found])
            if not text.startswith(tag, found):
                self._held = text[found:]
                break
            at = found + len(tag)
            self._inside = len(self._thoughts) if outside else None
            self._trim = not outside
        return pieces

    def _find_open(self, text: str, start: int) -> int:
        """Where the next opening tag, or the beginning of one at the very end, stands outside code; else the end."""
        code = self._code = self._code.after("".join(self._answer[self._scanned :]))
        self._scanned = len(self._answer)
        at = start
        while True:
            found = find_tag(text, OPEN, at)
            if found == len(text):
                return found
            code = code.after(text[at:found])
            if not code.in_code:
                return found
            # Step over the bracket only: it changes nothing that CodeMarks counts but the head of the line.
            code = code.after("<")
            at = found + 1


def find_tag(text: str, tag: str, start: int = 0) -> int:
    """Where `tag`, or a beginning of it that `text` ends with, starts; the length of `text` where there is none."""
    at = text.find("<", start)
    while at >= 0:
        if text.startswith(tag, at) or tag.startswith(text[at : at + len(tag)]):
            return at
        at = text.find("<", at + 1)
    return len(text)
