"""What both wires share: lines in, events out, and an answer that may also be one JSON object; no I/O, no clock."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from llmlab.client.events import Event, Fault
from llmlab.client.lines import Lines, parse, start_of
from llmlab.client.speech import said, unfold

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Wire(ABC):
    """Reads one answer: bytes in, events out, however the bytes are cut.

    After a `Fault` or `Done` nothing more is read (`ended`). An answer that ends without either is incomplete.
    """

    __slots__ = ("_events", "_lines", "_seen", "_whole", "ended")

    PATH: ClassVar[str]

    def __init__(self) -> None:
        self._lines = Lines()
        self._events: list[Event] = []
        self._seen = False  # whether any of our own language came
        self._whole: list[bytes] = []  # the lines of one object that does not fit on a line
        self.ended = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order."""
        self._events = []
        for line in self._lines.feed(data):
            if self.ended:
                break
            self._line(line)
        return self._events

    def end(self) -> list[Event]:
        """The events of what was left without a newline when the body ended."""
        self._events = []
        rest = self._lines.rest()
        if self._whole:
            text = b"\n".join([*self._whole, rest])
            value = parse(text)
            if isinstance(value, dict):
                self._object(value)
            else:
                self._foreign(text)
        elif rest and not self.ended:
            self._rest(rest)
        if not self.ended:
            self._finish()
        return self._events

    @abstractmethod
    def _line(self, line: bytes) -> None:
        """Read a whole line."""

    @abstractmethod
    def _rest(self, rest: bytes) -> None:
        """Read the last line, which may be cut."""

    @abstractmethod
    def _object(self, value: dict[str, Any]) -> None:
        """Read one JSON object."""

    def _finish(self) -> None:  # noqa: B027  a wire may have nothing to do then
        """The body has ended and the answer has not."""

    def _odd_line(self, line: bytes) -> None:
        """A line in no form that this wire knows."""
        line = line.removeprefix(BYTE_ORDER_MARK)
        if self._whole:
            self._whole.append(line)
        elif self._seen:
            self._fail(f"sent a line that cannot be read: {start_of(line)}")
        elif line[:1] != b"{":
            self._foreign(line)
        elif isinstance(value := parse(line), dict):
            self._object(value)
        else:
            # A server may answer with one object over several lines; only the end shows whether it is JSON.
            self._whole.append(line)

    def _foreign(self, line: bytes) -> None:
        """The answer is not in this wire's language."""
        what = f"did not answer like {self.PATH}"
        if line.lstrip()[:1] == b"<":
            self._fail(f"{what} but with an HTML page", "Check the address")
        else:
            self._fail(f"{what}: {start_of(line)}", "Check the address")

    def _report(self, value: dict[str, Any]) -> None:
        """The server reports an error."""
        self._fail(said(value["error"]) or "reported an error", body=unfold(value))

    def _fail(self, what: str, hint: str | None = None, body: object = None) -> None:
        self._events.append(Fault(what, hint, body))
        self.ended = True
