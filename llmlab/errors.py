"""The errors a person can meet: each says what, where and what next, on one line, with an exit code."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    SERVER = 4
    STORE = 5
    INTERRUPTED = 130


class LabError(Exception):
    """An error for a person.

    `what` says what happened and where, `hint` says what to do next; both are plain text without a final full stop.
    """

    exit_code = Exit.FAILED

    def __init__(self, what: str, hint: str | None = None) -> None:
        self.what = one_line(what)
        self.hint = one_line(hint) if hint else None
        super().__init__(self.what if self.hint is None else f"{self.what}. {self.hint}")


class UsageError(LabError):
    """The command line, an option or an environment variable cannot be used as given."""

    exit_code = Exit.USAGE


class Unreachable(LabError):
    """No server answered at the address."""

    exit_code = Exit.UNREACHABLE


class ServerError(LabError):
    """The server answered, but refused, failed or stopped in mid-answer.

    `http_status` is the status it sent (None where the fault came later); `body` is what it said, as parsed JSON or
    text; `retry_after_s` is its Retry-After header.
    """

    exit_code = Exit.SERVER

    def __init__(
        self,
        what: str,
        hint: str | None = None,
        *,
        http_status: int | None = None,
        body: object = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(what, hint)
        self.http_status = http_status
        self.body = body
        self.retry_after_s = retry_after_s


class SilenceTimeout(ServerError):
    """Nothing arrived for as long as the user allows."""


class Overflow(LabError):
    """What must be sent cannot fit into the window; nothing was sent."""

    exit_code = Exit.FAILED


class StoreError(LabError):
    """The database cannot be opened, read or written."""

    exit_code = Exit.STORE


class EngineError(LabError):
    """The embedded engine cannot be installed, started or loaded."""

    exit_code = Exit.UNREACHABLE


def one_line(text: str, limit: int = 300) -> str:
    """`text` without line breaks or control characters, cut at `limit` characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
