"""The budget: the people's cases one by one, then what must hold for every conversation and every window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.budget import Fit, fit, num_predict_left, window_limit
from llmlab.errors import Overflow, UsageError
from llmlab.messages import Message
from llmlab.tokens import CONVERSATION_TOKENS, Estimator, estimate_messages, estimate_tokens

S, U, A = "system", "user", "assistant"


def text(tokens: int) -> str:
    """Prose of exactly so many tokens by the estimate."""
    words = "the harbour of Lindum was dredged that year and barges waited outside " * (tokens // 6 + 1)
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if estimate_tokens(words[:middle]) < tokens else (low, middle)
    return words[:low]


def talk(*parts: tuple[str, str]) -> list[Message]:
    return [Message(role, content) for role, content in parts]


def contents(fitted: Fit) -> list[str]:
    return [m.content for m in fitted.kept]


# The window


def test_a_window_keeps_512_of_4096_for_the_answer() -> None:
    window = window_limit(4096)
    assert (window.num_ctx, window.reserve, window.limit, window.notice) == (4096, 512, 3584, None)


def test_a_small_window_keeps_a_quarter() -> None:
    assert window_limit(512).limit == 384


def test_an_unsaid_window_is_4096_and_the_models_maximum_only_an_upper_bound() -> None:
    window = window_limit(None, model_context=131_072)
    assert (window.num_ctx, window.limit) == (4096, 3584)
    with pytest.raises(Overflow, match="9,0"):
        fit([Message(S, "S"), Message(U, text(9000))], window.limit)


def test_the_window_is_the_least_of_asked_maximum_and_refused() -> None:
    assert window_limit(16_384, model_context=8192).num_ctx == 8192
    assert window_limit(16_384, model_context=8192, refused_n_ctx=2048).num_ctx == 2048
    assert window_limit(1024, model_context=8192, refused_n_ctx=2048).num_ctx == 1024
    assert window_limit(1024, model_context=0).num_ctx == 1024


def test_a_said_reserve_is_taken() -> None:
    assert window_limit(4096, reserve=0).limit == 4096
    assert window_limit(4096, reserve=1000).limit == 3096


def test_the_reserve_grows_to_a_longer_answer_up_to_half_of_the_window() -> None:
    assert window_limit(4096, num_predict=1000).limit == 3096
    assert window_limit(4096, num_predict=16).limit == 3584
    window = window_limit(4096, num_predict=32_768)
    assert window.limit == 2048
    assert window.notice is not None
    assert "32,768" in window.notice
    assert "2,048" in window.notice


@pytest.mark.parametrize("endless", [-1, -2, 0])
def test_an_endless_answer_reserves_as_usual(endless: int) -> None:
    window = window_limit(4096, num_predict=endless)
    assert (window.limit, window.notice) == (3584, None)


def test_pinned_text_survives_an_answer_longer_than_the_window() -> None:
    messages = [Message(S, "rules"), Message(U, text(1500), pinned=True), Message(U, "Summarise.")]
    fitted = fit(messages, window_limit(4096, num_predict=32_768).limit)
    assert fitted.kept == tuple(messages)


def test_reserves_larger_than_the_window_are_an_error_and_not_no_limit() -> None:
    with pytest.raises(Overflow, match="1,024") as error:
        window_limit(1024, num_predict=512, reserve=600)
    assert "1,112" in str(error.value)


@pytest.mark.parametrize("num_ctx", [0, -5])
def test_no_window_at_all_is_an_error(num_ctx: int) -> None:
    with pytest.raises(Overflow, match="no room"):
        window_limit(num_ctx)


def test_a_negative_reserve_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        window_limit(4096, reserve=-1)


@given(
    st.none() | st.integers(-10, 300_000),
    st.none() | st.integers(-10, 300_000),
    st.none() | st.integers(0, 300_000),
    st.none() | st.integers(-2, 300_000),
)
def test_a_window_never_promises_more_than_it_has(
    num_ctx: int | None, model_context: int | None, reserve: int | None, num_predict: int | None
) -> None:
    try:
        window = window_limit(num_ctx, model_context=model_context, reserve=reserve, num_predict=num_predict)
    except Overflow:
        return
    assert window.limit >= 1
    assert window.reserve >= (reserve or 0)
    assert window.limit + window.reserve == window.num_ctx


def test_the_answer_gets_what_is_left_and_never_zero() -> None:
    window = window_limit(4096)
    assert num_predict_left(window, 3000) == 1096
    assert num_predict_left(window, 3000, 200) == 200
    assert num_predict_left(window, 3000, 2000) == 1096
    assert num_predict_left(window, 3000, -1) == 1096
    assert num_predict_left(window, 9000) == 1


# What is sent


def test_a_conversation_that_fits_is_passed_on_as_it_is() -> None:
    messages = talk((A, "Hello."), (U, "a"), (U, "b"), (S, "later rules"), (A, "c"))
    fitted = fit(messages, 1000)
    assert fitted.kept == tuple(messages)
    assert (fitted.dropped, fitted.cuts, fitted.notice) == ((), 0, None)


def test_nothing_costs_nothing() -> None:
    fitted = fit([], 100)
    assert (fitted.kept, fitted.used, fitted.free_tokens) == ((), 0, 100)


def test_the_bare_text_looks_safe_but_the_template_counts() -> None:
    messages = talk(*[(U, "ok"), (A, "ok")] * 150, (U, "ok"))
    assert sum(estimate_tokens(m.content) for m in messages) < 400
    window = window_limit(2048, num_predict=256)
    fitted = fit(messages, window.limit)
    assert estimate_messages(fitted.kept) == fitted.used <= window.limit
    assert fitted.kept[0].role == U
    assert fitted.kept[-1] is messages[-1]


def test_system_and_newest_that_do_not_fit_are_refused_with_the_numbers() -> None:
    messages = talk((S, text(3000)), (U, "old question"), (A, "old answer"), (U, text(895) + " What is the total?"))
    with pytest.raises(Overflow) as error:
        fit(messages, window_limit(4096, num_predict=512).limit)
    for number in ("system 3,005", "3,584", "3,914"):
        assert number in str(error.value)


@pytest.mark.parametrize("limit", [0, -88])
def test_a_limit_of_nothing_is_not_no_limit(limit: int) -> None:
    with pytest.raises(Overflow):
        fit(talk((S, text(100)), (U, "a"), (A, text(4000)), (U, "b")), limit)


def test_a_tool_result_goes_with_its_call() -> None:
    messages = [
        Message(S, "s"),
        Message(U, text(100)),
        Message(A, "", extra={"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}),
        Message("tool", text(40)),
        Message(A, "fine"),
        Message(U, "next"),
    ]
    fitted = fit(messages, window_limit(200, num_predict=50).limit)
    assert contents(fitted) == ["s", "next"]
    assert [d.message for d in fitted.dropped] == messages[1:5]
    assert {d.reason for d in fitted.dropped} == {"older than the budget allows"}


def test_no_hole_where_one_big_turn_is_dropped() -> None:
    messages = talk((U, "u1"), (A, "a1"), (U, "u2"), (A, text(900)), (U, "u3"), (A, "a3"), (U, "u4"))
    assert contents(fit(messages, window_limit(1000, num_predict=200).limit)) == ["u3", "a3", "u4"]


def test_a_huge_answer_goes_when_the_next_message_is_sent() -> None:
    messages = talk((S, text(100)), (U, "a"), (A, text(4000)), (U, "b"))
    fitted = fit(messages, 1000)
    assert contents(fitted) == [messages[0].content, "b"]
    assert fitted.dropped_tokens == sum(d.tokens for d in fitted.dropped) > 4000


def test_thinking_of_earlier_answers_neither_goes_nor_counts() -> None:
    wire = [
        {"role": U, "content": "q1"},
        {"role": A, "content": "yes", "thinking": text(3400)},
        {"role": U, "content": "q2"},
    ]
    fitted = fit([Message.from_wire(m) for m in wire], window_limit(4096, num_predict=512).limit)
    assert contents(fitted) == ["q1", "yes", "q2"]
    assert fitted.used < 50


def test_system_messages_stay_wherever_they_stand_and_developer_is_one() -> None:
    messages = talk(
        (S, "s1"), (U, text(90)), (A, "a"), ("developer", "d"), (U, text(50)), (A, "b"), (S, "s2"), (U, "c")
    )
    assert contents(fit(messages, 90)) == ["s1", "d", "s2", "c"]


def test_a_tool_loop_drops_older_turns_and_keeps_its_own_question() -> None:
    call = Message(A, "", extra={"tool_calls": [{"function": {"name": "f", "arguments": {}}}]})
    messages = [Message(U, text(60)), Message(A, text(60)), Message(U, "look it up"), call, Message("tool", text(60))]
    fitted = fit(messages, 150)
    assert fitted.kept == tuple(messages[2:])
    assert fitted.cold


# Pins


def pinned_pair() -> list[Message]:
    return [Message(U, "The word is X.", pinned=True), Message(A, "The word is X.", pinned=True)]


def test_a_pinned_turn_stays_in_its_place() -> None:
    filler = talk(*[(U, text(50)), (A, text(50))] * 6)
    fitted = fit([*filler[:4], *pinned_pair(), *filler[4:], Message(U, "Which word?")], 400)
    assert contents(fitted)[:2] == ["The word is X."] * 2
    assert fitted.kept[-1].content == "Which word?"
    assert fitted.kept[2].role == U
    assert fitted.pinned_tokens == Estimator().messages(pinned_pair()) - CONVERSATION_TOKENS
    assert fitted.system_tokens + fitted.pinned_tokens + fitted.kept_tokens == fitted.used


def test_a_message_pinned_alone_is_joined_to_a_neighbour_of_its_role() -> None:
    messages = [Message(U, "Keep this.", pinned=True), Message(A, text(80)), Message(U, "And now?")]
    fitted = fit(messages, 60)
    assert contents(fitted) == ["Keep this.\n\nAnd now?"]
    assert fitted.used == estimate_messages(fitted.kept)
    assert fitted.kept_tokens > 0


def test_two_answers_pinned_alone_are_joined() -> None:
    messages = [
        Message(U, text(50)),
        Message(A, "one", pinned=True),
        Message(U, text(50)),
        Message(A, "two", pinned=True),
        Message(U, "now"),
    ]
    fitted = fit(messages, 70)
    assert [(m.role, m.content) for m in fitted.kept] == [(A, "one\n\ntwo"), (U, "now")]


def test_a_pin_in_a_turn_with_tools_holds_the_whole_turn() -> None:
    call = Message(A, "", extra={"tool_calls": [{"function": {"name": "f", "arguments": {}}}]})
    turn = [Message(U, "q"), call, Message("tool", "result", pinned=True), Message(A, "so")]
    fitted = fit([*turn, Message(U, text(60)), Message(A, text(60)), Message(U, "next")], 130)
    assert fitted.kept == (*turn, Message(U, "next"))


def test_pins_that_fill_the_window_are_refused_with_the_numbers() -> None:
    with pytest.raises(Overflow, match="pinned 1,0"):
        fit([Message(U, text(1000), pinned=True), Message(A, "ok"), Message(U, "and?")], 800)


# The cut stays put


def session(turns: int, tokens: int) -> list[Message]:
    """User and assistant share `tokens` of each turn, template included."""
    half = tokens // 2 - 5
    return talk(*[(U, text(half)), (A, text(half))] * turns)


def test_the_start_of_what_is_sent_changes_in_few_of_forty_turns() -> None:
    messages = session(40, 200)
    limit = window_limit(4096, num_predict=512).limit
    sent = [fit(messages[: 2 * turn + 1], limit) for turn in range(40)]
    moved = [i for i in range(1, 40) if sent[i].kept[: len(sent[i - 1].kept)] != sent[i - 1].kept]
    assert len(moved) == 4
    assert moved == [i for i, fitted in enumerate(sent) if fitted.cold]
    assert sent[-1].cuts == 4
    assert sent[moved[0]].notice == "dropped 6 turns, about 3,704 → 2,504 of 3,584 tokens"
    assert sent[moved[0] + 1].notice is None
    assert min(fitted.used for fitted in sent[17:]) > 0.69 * limit


def test_a_different_ratio_counts_in_the_models_tokens() -> None:
    messages = session(6, 100)[:-1]
    assert fit(messages, 700).cuts == 0
    fitted = fit(messages, 700, Estimator(1.5))
    assert fitted.cuts == 1
    assert fitted.used == Estimator(1.5).messages(fitted.kept) <= 700


# What holds for every conversation


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Messages of any role in any order; each begins with its own number."""
    roles = draw(st.lists(st.sampled_from([U, A, U, A, "tool", S]), max_size=24))
    return [
        Message(role, f"{i}:{'z ' * draw(st.integers(0, 40))}", draw(st.integers(0, 9)) == 0)
        for i, role in enumerate(roles)
    ]


def numbers(message: Message) -> list[int]:
    """The numbers of the messages that were joined into this one."""
    return [int(part.split(":")[0]) for part in message.content.split("\n\n")]


def newest_turn(messages: list[Message]) -> set[int]:
    spoken = [i for i, m in enumerate(messages) if m.role != S]
    users = [i for i in spoken if messages[i].role == U]
    return {i for i in spoken if i >= (users[-1] if users else 0)}


LIMITS = st.integers(1, 600)
RATIOS = st.sampled_from([0.5, 0.87, 1.0, 1.31, 3.0])


@given(conversations(), LIMITS, RATIOS)
def test_whatever_is_kept_is_what_must_be(messages: list[Message], limit: int, ratio: float) -> None:
    estimator = Estimator(ratio)
    must = {i for i, m in enumerate(messages) if m.role == S or m.pinned} | newest_turn(messages)
    try:
        fitted = fit(messages, limit, estimator)
    except Overflow:
        bare = [messages[i] for i in sorted(must | pinned_tool_turns(messages))]
        assert estimator.messages(bare) > limit
        return
    kept = [n for m in fitted.kept for n in numbers(m)]
    dropped = [numbers(d.message)[0] for d in fitted.dropped]
    assert fitted.used == estimator.messages(fitted.kept) <= limit
    assert sorted(kept + dropped) == list(range(len(messages)))
    assert kept == sorted(kept)
    assert must <= set(kept)
    assert (fitted.cuts == 0) == (not dropped)
    assert min(fitted.system_tokens, fitted.pinned_tokens, fitted.kept_tokens, fitted.free_tokens) >= 0
    unpinned = [i for i in kept if messages[i].role != S and i not in must | pinned_tool_turns(messages)]
    if dropped and unpinned:
        question = max(i for i in range(unpinned[0] + 1) if messages[i].role == U)
        assert question in kept
        assert max(dropped) < unpinned[0]
    elif dropped:
        assert max(dropped) < min(newest_turn(messages))


def pinned_tool_turns(messages: list[Message]) -> set[int]:
    """All of each turn that has both a tool result and a pin."""
    found: set[int] = set()
    turn: list[int] = []
    for i, m in [*enumerate(messages), (len(messages), Message(U, ""))]:
        if m.role == U:
            if any(messages[j].role == "tool" for j in turn) and any(messages[j].pinned for j in turn):
                found |= set(turn)
            turn = []
        if m.role != S:
            turn.append(i)
    return found


@given(conversations(), LIMITS)
def test_what_is_sent_only_grows_until_the_next_cut(messages: list[Message], limit: int) -> None:
    before: Fit | None = None
    for end in range(1, len(messages) + 1):
        if messages[end - 1].role == A:
            continue
        try:
            now = fit(messages[:end], limit)
        except Overflow:
            before = None
            continue
        if before is not None and now.cuts == before.cuts:
            assert now.kept[: len(before.kept)] == before.kept
            assert now.dropped == before.dropped
        if before is not None:
            assert now.cuts >= before.cuts
            assert now.dropped[: len(before.dropped)] == before.dropped
        before = now


@given(conversations(), LIMITS)
def test_fitting_what_was_fitted_changes_nothing(messages: list[Message], limit: int) -> None:
    try:
        once = fit(messages, limit)
    except Overflow:
        return
    assert fit(once.kept, limit).kept == once.kept


def test_a_conversation_of_ten_thousand_messages() -> None:
    messages = session(5000, 100)
    fitted = fit(messages[:-1], 3584)
    assert fitted.cuts == 497
    assert len(fitted.kept) + len(fitted.dropped) == 9999
    assert fitted.kept[-1] is messages[-2]
