"""A chat from its request to its one `Call`: times on a scripted clock, counts, outcomes, cancelling."""

import asyncio
import json
from dataclasses import fields
from typing import Any

import httpx
import pytest
from asking import HELLO, MS, Clock, Reading, chat, scripted, server_at, until
from played import PlayedServer, answer, done_line, line, step_bytes

from llmlab.call import Call, Label, has_flag
from llmlab.client import ChatOptions, Client, Piece
from llmlab.errors import ServerError, SilenceTimeout, Unreachable
from llmlab.messages import Message

pytestmark = pytest.mark.usefixtures("reading")

S = 1_000 * MS


def lines(*steps: tuple[float, Any]) -> list[tuple[float, bytes | Exception]]:
    """Script steps from (milliseconds, played step or text)."""
    return [(ms, step_bytes(line(step) if isinstance(step, str) else step)) for ms, step in steps]


async def played(*steps: tuple[float, Any], label: Label = Label(), **options: Any) -> Any:
    """A chat on a scripted clock, without a socket."""
    clock = Clock()
    async with Client(server_at(), transport=scripted(clock, *lines(*steps)), clock=clock) as client:
        return await chat(client, label=label, **options)


async def test_a_call_has_every_number() -> None:
    label = Label(run_id="r", seq=3, model_id="m", experiment="users", size=8, user=2, cache_state="cold")
    got = await played((800, "Hel"), (30, "lo"), (50, "!"), (10, done_line()), label=label, num_ctx=4096)
    call = got.call
    assert got.text == "Hello!"
    seen = [Piece("content", "Hel"), Piece("content", "lo"), Piece("content", "!")]
    assert got.pieces == ([] if Reading.as_a_whole else seen)
    assert (call.run_id, call.seq, call.model_id, call.experiment, call.size, call.user) == ("r", 3, "m", "users", 8, 2)
    assert (call.num_ctx, call.cache_state, call.purpose) == (4096, "cold", "answer")
    assert (call.prompt_chars, call.messages_sent, call.in_flight) == (10, 1, 0)
    assert (call.prompt_tokens, call.output_tokens, call.cached_tokens, call.pieces) == (120, 40, None, 3)
    assert (call.ttft_ns, call.ttft_answer_ns) == (800 * MS, 800 * MS)
    assert (call.last_piece_ns, call.stall_max_ns, call.total_ns) == (880 * MS, 50 * MS, 890 * MS)
    assert (call.server_total_ns, call.load_ns, call.decode_ns) == (1300 * MS, 20 * MS, 1000 * MS)
    assert (call.outcome, call.done_reason, call.http_status, call.error) == ("ok", "stop", 200, None)
    assert call.timing_source == "reader"
    assert call.prompt_hash is not None
    assert len(call.prompt_hash) == 16


async def test_the_socket_stamps_what_arrives_on_it() -> None:
    clock, seen = Clock(), asyncio.Event()
    script = answer({"call": clock.later(805)}, "a", {"wait": seen}, {"call": clock.later(45)}, "b", done_line())
    async with PlayedServer([script]) as server, Client(server_at(server.url), clock=clock) as client:
        async with client.chat(HELLO, ChatOptions(model="m")) as stream:
            async for _ in stream:
                seen.set()
        call = stream.call
        assert (call.ttft_ns, call.last_piece_ns, call.timing_source) == (805 * MS, 850 * MS, "socket")
        assert (call.connect_ns, stream.sent_ns) == (0, clock.now_ns - 850 * MS)


@pytest.mark.parametrize("first", ["a", {"thinking": "a"}, {"tool_calls": [{"function": {"name": "f"}}]}])
async def test_the_first_token_is_the_first_with_something_in_it(first: Any) -> None:
    opening = {"line": {"message": {"role": "assistant", "content": ""}, "done": False}}
    if isinstance(first, dict):
        first = {"line": {"message": {"content": "", **first}, "done": False}}
    call = (await played((5, opening), (800, first), (10, done_line()))).call
    assert call.ttft_ns == 805 * MS


async def test_first_thought_and_first_word_are_two_times() -> None:
    think = {"line": {"message": {"content": "", "thinking": "a"}, "done": False}}
    got = await played((100, think), (1800, "x"), (100, done_line(eval_count=80, eval_duration=2 * S)))
    assert (got.call.ttft_ns, got.call.ttft_answer_ns) == (100 * MS, 1900 * MS)
    assert (got.thinking, got.text, got.call.decode_tokens_per_s) == ("a", "x", 40.0)


async def test_reasoning_in_tags_has_the_same_two_times() -> None:
    got = await played((100, "<th"), (10, "ink>plan</thi"), (10, "nk>\n\n"), (300, "Done."), (10, done_line()))
    assert (got.call.ttft_ns, got.call.ttft_answer_ns, got.call.pieces) == (100 * MS, 420 * MS, 4)
    assert (got.text, got.thinking) == ("Done.", "plan")


async def test_a_held_back_word_counts_from_its_arrival() -> None:
    got = await played((100, "<"), (10, done_line()))
    assert (got.text, got.call.ttft_answer_ns) == ("<", 100 * MS)


@pytest.mark.parametrize("halves", [("\ud83d", "\ude00"), ("\ud83d", "x")])
async def test_halves_of_characters_never_leave_the_client(halves: tuple[str, str]) -> None:
    first, second = ({"text": json.dumps({"message": {"content": half}}) + "\n"} for half in halves)
    got = await played((1, first), (1, second), (1, done_line()))
    assert got.text == ("😀" if halves[1] == "\ude00" else "\ufffdx")
    async with PlayedServer([answer("ok", done_line())]) as server, Client(server_at(server.url)) as client:
        await chat(client, [Message("assistant", "half \ud83d"), Message("user", "go on")])
        assert server.requests[0].json["messages"][0]["content"] == "half \ufffd"


async def test_tool_calls_are_kept_in_order() -> None:
    calls = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in ("Aville", "Bville")]
    steps = [(1, {"line": {"message": {"content": "", "tool_calls": [call]}}}) for call in calls]
    got = await played(*steps, (1, done_line()))
    assert (got.stream.tool_calls, got.text, got.call.pieces) == (calls, "", 0)


@pytest.mark.parametrize(
    ("cache_state", "load", "prefill", "first_ms", "wanted"),
    [
        ("cold", 20, 60, 80, (60, "server")),
        ("cold", 20, 5600, 14_320, (14_300, "client")),
        ("unknown", 20, 5600, 14_320, (5600, "server")),
        ("warm", 20, 60, 1_000, (60, "server")),
        ("cold", 20, 60, 320, (60, "server")),  # 240 ms more: below the margin
        ("cold", 20, 5600, 6_100, (5600, "server")),  # 480 ms more, but under 10 %
        ("cold", 20, None, 1_000, (None, None)),
    ],
)
async def test_prefill_is_the_servers_unless_it_timed_only_a_part(
    cache_state: str, load: int, prefill: int | None, first_ms: int, wanted: tuple[int | None, str | None]
) -> None:
    end = done_line(load_duration=load * MS, prompt_eval_duration=None if prefill is None else prefill * MS)
    call = (await played((first_ms, "a"), (1000, "b"), (1, end), label=Label(cache_state=cache_state))).call
    assert (call.prefill_ns, call.prefill_source) == (wanted[0] and wanted[0] * MS, wanted[1])


async def test_a_call_that_was_not_alone_never_times_prefill_from_outside() -> None:
    for late in (False, True):
        clock = Clock()
        body = answer({"call": clock.later(14_000)}, "a", done_line(prompt_eval_duration=5600 * MS))
        gate = asyncio.Event()
        held = answer({"wait": gate}, "b", done_line())
        label = Label(cache_state="cold")
        async with (
            PlayedServer([held, body] if not late else [body, held]) as server,
            Client(server_at(server.url), clock=clock) as client,
        ):
            first = asyncio.ensure_future(chat(client, label=label))
            await until(lambda: client.in_flight == 1)
            second = asyncio.ensure_future(chat(client, label=label))
            await until(lambda: client.in_flight == 2)
            gate.set()
            calls = [(await first).call, (await second).call]
        measured = calls[0 if late else 1]
        assert (measured.prefill_source, measured.in_flight) == ("server", 0 if late else 1)


async def test_waiting_for_a_slot_is_no_prefill() -> None:
    end = done_line(total_duration=7300 * MS)
    call = (await played((6200, "a"), (1000, "b"), (1, end))).call
    assert call.prefill_tokens_per_s is None
    assert (call.prefill_ns, call.unexplained_ns) == (60 * MS, 6120 * MS)
    assert call.decode_tokens_per_s == 40.0


@pytest.mark.parametrize(
    ("first", "rest", "figures", "flagged"),
    [
        (3000, 2, {}, True),  # everything at once after the decode time: held back
        (80, 1000, {}, False),
        (800, 2, {}, False),  # a wait, but shorter than decoding: it was something else
        (3000, 1000, {}, False),  # a wait before, but then a stream
        (80, 2, {"eval_duration": 50 * MS, "eval_count": 4}, False),  # too little to tell
    ],
)
async def test_a_stream_that_comes_in_one_burst_is_flagged(
    first: int, rest: int, figures: dict[str, int], flagged: bool
) -> None:
    call = (await played((first, "a"), (rest, "b"), (0, done_line(**figures)))).call
    assert has_flag(call, "buffered") == flagged
    assert not (flagged and has_flag(call, "decode_disagrees"))
    assert call.decode_tokens_per_s in (40.0, None)


async def test_a_buffered_stream_keeps_the_servers_prefill() -> None:
    call = (await played((3000, "a"), (2, done_line()), label=Label(cache_state="cold"))).call
    assert (call.prefill_source, call.prefill_ns) == ("server", 60 * MS)


@pytest.mark.parametrize(
    ("span_ms", "tokens", "flagged"),
    [(1000, 40, False), (1090, 40, False), (1110, 40, True), (850, 40, True), (1500, 15, False)],
)
async def test_decode_speeds_over_ten_percent_apart_are_flagged(span_ms: int, tokens: int, flagged: bool) -> None:
    call = (await played((80, "a"), (span_ms, "b"), (1, done_line(eval_count=tokens)))).call
    assert has_flag(call, "decode_disagrees") == flagged


async def test_a_slow_connection_on_this_machine_is_flagged() -> None:
    clock = Clock()

    class SlowToConnect:
        """A clock that jumps while the connection is opened."""

        reads = 0

        def __call__(self) -> int:
            self.reads += 1
            return clock() + (250 * MS if self.reads > 1 else 0)

    async with (
        PlayedServer([answer("a", done_line())] * 2) as server,
        Client(server_at(server.url), clock=SlowToConnect()) as client,
    ):
        first, second = (await chat(client)).call, (await chat(client)).call
    assert (first.connect_ns, has_flag(first, "slow_connect")) == (250 * MS, True)
    assert (second.connect_ns, has_flag(second, "slow_connect")) == (None, False)
    assert first.ttft_ns == 0


async def test_impossible_figures_are_flagged_and_unknown() -> None:
    call = (await played((80, "a"), (1, done_line(eval_duration=-5, eval_count=0)))).call
    assert (call.decode_ns, call.decode_tokens_per_s, call.output_tokens) == (None, None, 0)
    assert has_flag(call, "odd_figures")


@pytest.mark.parametrize(
    ("reason", "prompt", "output", "wanted"),
    [
        (None, 120, 40, None),
        ("length", 120, 32, "length"),
        ("length", 4000, 96, "window_full"),
        ("length", 4000, 97, "window_full"),
        ("length", 120, 5000, "length"),  # the window moved on: it was the limit that ended the answer
        ("stop", 4000, 96, "stop"),
        ("length", None, 96, "length"),
    ],
)
async def test_a_full_window_is_told_from_a_reached_limit(
    reason: str | None, prompt: int | None, output: int, wanted: str | None
) -> None:
    got = await played((1, "a"), (1, done_line(reason, prompt_eval_count=prompt, eval_count=output)), num_ctx=4096)
    assert got.call.done_reason == wanted


@pytest.mark.parametrize("reason", ["load", "unload"])
async def test_loading_is_no_answer_but_where_it_was_asked_for(reason: str) -> None:
    only = done_line(reason, **dict.fromkeys(["eval_count", "eval_duration", "prompt_eval_count"]))
    got = await played((1, only))
    assert isinstance(got.error, ServerError)
    assert "nothing was generated" in str(got.error)
    assert (got.call.outcome, got.call.done_reason) == ("error", reason)
    assert (await played((1, only), label=Label(purpose="warmup"))).call.outcome == "ok"
    async with PlayedServer([answer(only)]) as server, Client(server_at(server.url)) as client:
        assert (await chat(client, [])).call.outcome == "ok"


@pytest.mark.parametrize(
    ("steps", "text", "outcome", "words"),
    [
        (["The first ", "half"], "The first half", "incomplete", "ended before it was done"),
        ([], "", "incomplete", "ended before it was done"),
        (["partial", {"text": '{"StatusCode":502,"error":"remote closed"}'}], "partial", "error", "remote closed"),
        (["a", {"text": "<html>\n"}], "a", "error", "cannot be read"),
    ],
)
async def test_what_came_before_the_end_is_kept(steps: list[Any], text: str, outcome: str, words: str) -> None:
    async with PlayedServer([answer(*steps)]) as server, Client(server_at(server.url)) as client:
        got = await chat(client)
        assert (got.text, got.call.outcome, got.call.error) == (text, outcome, str(got.error))
        assert words in str(got.error)
        assert server.url in str(got.error)
        assert got.call.decode_tokens_per_s is None
        assert client.in_flight == 0


async def test_silence_is_a_timeout_that_says_how_long() -> None:
    never = asyncio.Event()
    async with (
        PlayedServer([answer("one ", "two ", {"wait": never})]) as server,
        Client(server_at(server.url), timeout_s=0.02) as client,
    ):
        got = await chat(client)
        assert isinstance(got.error, SilenceTimeout)
        assert "no data for 0.02 s" in str(got.error)
        assert (got.text, got.call.outcome, got.call.total_ns is None) == ("one two ", "timeout", False)
        await server.requests[0].left.wait()


async def test_silence_before_the_first_token_is_a_timeout_too() -> None:
    never = asyncio.Event()
    async with (
        PlayedServer([answer({"wait": never})]) as server,
        Client(server_at(server.url), timeout_s=0.02) as client,
    ):
        got = await chat(client)
        assert isinstance(got.error, SilenceTimeout)
        assert (got.call.outcome, got.call.http_status, got.call.ttft_ns) == ("timeout", None, None)
        assert got.call.total_ns is not None
        assert got.call.timing_source == "socket"


async def test_a_total_limit_ends_an_answer_that_never_ends() -> None:
    forever = {"repeat_forever": line("again")["line"], "every_ms": 1}
    async with PlayedServer([answer(forever)]) as server, Client(server_at(server.url), total_s=0.05) as client:
        got = await chat(client)
        assert (got.call.outcome, "longer than 0.05 s" in str(got.error)) == ("timeout", True)
        assert got.call.pieces > 0
        await server.requests[0].left.wait()


async def test_leaving_early_is_cancelled_and_closes_at_once() -> None:
    forever = {"repeat_forever": line("again")["line"], "every_ms": 1}
    async with PlayedServer([answer(forever)]) as server, Client(server_at(server.url)) as client:
        async with client.chat(HELLO, ChatOptions(model="m")) as stream:
            async for _ in stream:
                break
        assert (stream.call.outcome, stream.call.error) == ("cancelled", None)
        assert stream.text.startswith("again")
        await server.requests[0].left.wait()


@pytest.mark.parametrize("steps", [[], ["a"]])
async def test_a_cancelled_task_leaves_a_call_and_closes_at_once(steps: list[str]) -> None:
    never = asyncio.Event()
    async with PlayedServer([answer(*steps, {"wait": never})]) as server, Client(server_at(server.url)) as client:
        stream = client.chat(HELLO, ChatOptions(model="m"))

        async def read() -> None:
            async with stream:
                async for _ in stream:
                    pass

        task = asyncio.ensure_future(read())
        await until(lambda: server.requests and stream.text == "".join(steps))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (stream.call.outcome, stream.text) == ("cancelled", "".join(steps))
        assert client.in_flight == 0
        await server.requests[0].left.wait()


async def test_closing_the_client_ends_the_chats_under_way() -> None:
    never = asyncio.Event()
    async with PlayedServer([answer("a", {"wait": never}), answer({"wait": never})]) as server:
        client = Client(server_at(server.url))
        tasks = [asyncio.ensure_future(chat(client)) for _ in range(2)]
        await until(lambda: len(server.requests) == 2)
        await client.aclose()
        got = [await task for task in tasks]
        assert {one.call.outcome for one in got} <= {"incomplete", "error"}
        assert all(isinstance(one.error, ServerError) for one in got)
        assert client.in_flight == 0


async def test_a_fault_of_the_reader_is_a_cancelled_call() -> None:
    never = asyncio.Event()
    async with PlayedServer([answer("a", {"wait": never})]) as server, Client(server_at(server.url)) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.chat(HELLO, ChatOptions(model="m")) as stream:
                async for _ in stream:
                    raise ZeroDivisionError
        assert stream.call.outcome == "cancelled"


async def test_a_chat_that_is_never_read_is_a_cancelled_call_and_sends_nothing() -> None:
    async with PlayedServer([]) as server, Client(server_at(server.url)) as client:
        async with client.chat(HELLO, ChatOptions(model="m")) as stream:
            with pytest.raises(RuntimeError):
                _ = stream.call
        assert (stream.call.outcome, server.connections, client.in_flight) == ("cancelled", 0, 0)


async def test_the_error_is_raised_once_and_the_call_stays() -> None:
    async with PlayedServer([answer("a")]) as server, Client(server_at(server.url)) as client:
        async with client.chat(HELLO, ChatOptions(model="m")) as stream:
            with pytest.raises(ServerError):
                async for _ in stream:
                    pass
            call = stream.call
            assert [piece async for piece in stream] == []
        await stream.aclose()
        assert stream.call is call


async def test_calls_under_way_are_counted() -> None:
    gate = asyncio.Event()
    async with (
        PlayedServer([answer({"wait": gate}, "a", done_line())] * 3) as server,
        Client(server_at(server.url)) as client,
    ):
        tasks = [asyncio.ensure_future(chat(client)) for _ in range(3)]
        await until(lambda: len(server.requests) == 3)
        assert client.in_flight == 3
        gate.set()
        calls = [got.call for got in await asyncio.gather(*tasks)]
        assert sorted(call.in_flight or 0 for call in calls) == [0, 1, 2]
        assert client.in_flight == 0


async def test_nobody_there_names_the_address_and_both_ways_out() -> None:
    async with Client(server_at("http://127.0.0.1:9", source="OLLAMA_HOST")) as client:
        got = await chat(client)
    assert isinstance(got.error, Unreachable)
    for words in ("http://127.0.0.1:9", "OLLAMA_HOST", "ollama serve", "llmlab[engine]", "refused"):
        assert words in str(got.error)
    assert (got.call.outcome, got.call.http_status, got.call.ttft_ns) == ("error", None, None)


async def test_a_server_that_hangs_up_is_not_nobody() -> None:
    drop = {"drop_connection_without_response": True}
    async with PlayedServer([drop]) as server, Client(server_at(server.url)) as client:
        got = await chat(client)
        assert isinstance(got.error, ServerError)
        assert "closed the connection without an answer" in str(got.error)
        assert (got.call.outcome, len(server.requests)) == ("error", 1)


async def test_connections_can_be_opened_ahead_of_a_burst() -> None:
    async with PlayedServer([answer("a", done_line())] * 3) as server, Client(server_at(server.url)) as client:
        await client.connect(3)
        calls = [got.call for got in await asyncio.gather(*(chat(client) for _ in range(3)))]
        assert [call.connect_ns for call in calls] == [None] * 3
        assert server.connections == 3
    async with Client(server_at("http://127.0.0.1:9")) as client:
        with pytest.raises(Unreachable):
            await client.connect(1)
    async with Client(server_at(), transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
        await client.connect(3)


async def test_the_same_messages_have_the_same_hash() -> None:
    async def hashed(*messages: Message) -> str | None:
        async with PlayedServer([answer("a", done_line())]) as server, Client(server_at(server.url)) as client:
            return (await chat(client, messages)).call.prompt_hash

    one = await hashed(Message("user", "hi"))
    assert one == await hashed(Message("user", "hi", pinned=True))
    assert one != await hashed(Message("user", "hi "))
    assert one != await hashed(Message("system", "hi"))


async def test_only_content_is_counted_in_characters() -> None:
    parts = Message.from_wire({"role": "user", "content": [{"type": "text", "text": "four"}, {"type": "image_url"}]})
    async with PlayedServer([answer("a", done_line())]) as server, Client(server_at(server.url)) as client:
        call = (await chat(client, [Message("system", "abc"), parts])).call
        assert (call.prompt_chars, call.messages_sent) == (7, 2)


async def test_a_transport_that_fails_in_mid_answer_leaves_one_call() -> None:
    clock = Clock()
    for error, outcome in ((httpx.ReadError("gone"), "incomplete"), (httpx.ReadTimeout(""), "timeout")):
        transport = scripted(clock, *lines((5, "a")), (5, error))
        async with Client(server_at(), transport=transport, clock=clock) as client:
            got = await chat(client)
            assert (got.text, got.call.outcome, got.call.total_ns) == ("a", outcome, 10 * MS)


def test_every_column_a_client_can_know_is_set_from_something() -> None:
    """New columns of a call must be thought of here: measured by the client, known to the caller, or set later."""
    later = {"num_ctx_loaded", "cut", "cut_evidence", "recalled", "id"}
    known = {column.name for column in fields(Label)}
    measured = {
        "num_ctx", "started_utc", "prompt_chars", "messages_sent", "prompt_tokens", "cached_tokens", "output_tokens",
        "pieces", "connect_ns", "ttft_ns", "ttft_answer_ns", "last_piece_ns", "stall_max_ns", "total_ns",
        "server_total_ns", "load_ns", "prefill_ns", "prefill_source", "decode_ns", "in_flight", "outcome",
        "done_reason", "http_status", "error", "timing_source", "flags", "prompt_hash",
    }  # fmt: skip
    assert {column.name for column in fields(Call)} == later | known | measured
