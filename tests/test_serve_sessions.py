"""Sessions are remembered within bounds: number, idle time, size."""

from llmlab.conversation import Conversation, Policy
from llmlab.messages import Message
from llmlab.serve.sessions import Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def conversation(chars: int) -> Conversation:
    return Conversation(None, None, Policy(None), lambda call, texts: None, messages=[Message("user", "x" * chars)])


def test_a_name_is_one_session_until_it_was_idle_too_long():
    clock = Clock()
    sessions = Sessions(idle_s=10, clock=clock)
    first = sessions.get("a")
    clock.now = 9
    assert sessions.get("a") is first
    clock.now = 18
    assert sessions.get("a") is first
    clock.now = 28
    assert len(sessions) == 0
    assert sessions.get("a") is not first


def test_the_one_used_longest_ago_goes_first():
    sessions = Sessions(most=2)
    a, b = sessions.get("a"), sessions.get("b")
    assert sessions.get("a") is a
    sessions.get("c")
    assert len(sessions) == 2
    assert sessions.get("a") is a
    assert sessions.get("b") is not b


def test_they_have_a_size_together():
    sessions = Sessions(most_chars=100)
    for name in ("a", "b"):
        session = sessions.get(name)
        session.conversation = conversation(40)
        sessions.keep(name, session)
    assert len(sessions) == 2
    b = sessions.get("b")
    b.conversation = conversation(80)
    sessions.keep("b", b)
    assert len(sessions) == 1
    assert sessions.get("b") is b


def test_a_session_that_was_forgotten_meanwhile_is_not_counted():
    sessions = Sessions(most=1, most_chars=100)
    a = sessions.get("a")
    sessions.get("b")
    a.conversation = conversation(1000)
    sessions.keep("a", a)
    assert len(sessions) == 1
