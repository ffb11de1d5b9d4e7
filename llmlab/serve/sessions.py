"""Sessions: conversations that the server remembers between two requests, within bounds."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from llmlab.conversation import Conversation

MOST = 1_000
IDLE_S = 3_600.0
MOST_CHARS = 64_000_000


@dataclass(eq=False)
class Session:
    """One conversation; `lock` lets its requests in one after the other. `conversation` is None before the first."""

    conversation: Conversation | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used_s: float = 0.0
    chars: int = 0


class Sessions:
    """At most `most` sessions, of at most `most_chars` characters together, each forgotten `idle_s` after its last use.

    The session that was used longest ago goes first. `clock` counts seconds.
    """

    def __init__(
        self,
        most: int = MOST,
        idle_s: float = IDLE_S,
        most_chars: int = MOST_CHARS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._idle_s = idle_s
        self._most_chars = most_chars
        self._clock = clock
        self._chars = 0
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        self._forget_old()
        return len(self._sessions)

    def get(self, name: str) -> Session:
        """The session of that name, made where there is none."""
        self._forget_old()
        session = self._sessions.setdefault(name, Session())
        session.used_s = self._clock()
        self._sessions.move_to_end(name)
        while len(self._sessions) > self._most:
            self._forget(next(iter(self._sessions)))
        return session

    def peek(self, name: str) -> Conversation | None:
        """What a session remembers, without using it."""
        session = self._sessions.get(name)
        return session.conversation if session is not None else None

    def keep(self, name: str, session: Session) -> None:
        """Note what a session has become by an answer."""
        if self._sessions.get(name) is not session or session.conversation is None:
            return
        session.used_s = self._clock()
        self._sessions.move_to_end(name)
        chars = sum(len(m.content) for m in session.conversation.messages)
        self._chars += chars - session.chars
        session.chars = chars
        while self._chars > self._most_chars and self._sessions:
            self._forget(next(iter(self._sessions)))

    def _forget_old(self) -> None:
        oldest_s = self._clock() - self._idle_s
        while self._sessions:
            name, session = next(iter(self._sessions.items()))
            if session.used_s > oldest_s:
                break
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._chars -= self._sessions.pop(name).chars
