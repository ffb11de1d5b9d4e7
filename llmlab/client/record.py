"""The record of one call while it is measured: stamped bytes in, pieces and in the end a `Call` out."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from llmlab.call import Call, Label, add_flag, utc_now
from llmlab.client.deltas import Deltas, whole_characters
from llmlab.client.events import Done, Event, Fault, Piece, ToolCalls
from llmlab.client.wire import Wire
from llmlab.messages import Message

DISAGREE = 0.10
COMPARE_FROM_TOKENS = 16
COMPARE_FROM_NS = 50_000_000
CLIENT_PREFILL_RATIO = 1.10
CLIENT_PREFILL_MARGIN_NS = 250_000_000
BUFFERED_FROM_TOKENS = 8
BUFFERED_FROM_NS = 100_000_000
LONGEST_REASON = 80
SLOW_CONNECT_NS = 200_000_000


class Record:
    """Measures one answer: feed it the stamped chunks of the body, close it, and ask for the `Call`.

    `sent_ns`, when the request was written on the clock of the stamps, is set before `call`.
    """

    def __init__(self, wire: Wire, label: Label) -> None:
        self._label = label
        self._started_utc = utc_now()
        self.wire = wire
        self.in_flight = 0
        self.deltas = Deltas()
        self.tool_calls: list[dict[str, Any]] = []
        self.done: Done | None = None
        self.fault: Fault | None = None
        self.sent_ns: int | None = None
        self.connect_ns: int | None = None
        self.http_status: int | None = None
        self.timing_source: str | None = None
        self.pieces = 0
        self.first_ns: int | None = None
        self.answer_ns: int | None = None
        self.last_ns: int | None = None
        self.end_ns: int | None = None
        self._stall_ns = -1  # no gap yet

    def start(self, in_flight: int) -> None:
        """The call begins now, beside `in_flight` other calls of ours."""
        self._started_utc = utc_now()
        self.in_flight = in_flight

    def feed(self, stamp_ns: int, data: bytes) -> Sequence[Piece]:
        """The pieces to show that `data`, arrived at `stamp_ns`, completes."""
        events = self.wire.feed(data)
        if self.last_ns is None or self.answer_ns is None or len(events) != 1 or type(events[0]) is not Piece:
            return self._events(events, stamp_ns)
        # One more piece of an answer that has begun, as nearly every chunk is.
        self._stall_ns = max(self._stall_ns, stamp_ns - self.last_ns)
        self.last_ns = stamp_ns
        self.pieces += 1
        return self.deltas.feed(events[0])

    def close_wire(self, stamp_ns: int) -> Sequence[Piece]:
        """The body ended; the pieces of what was left without a newline."""
        return self._events(self.wire.end(), stamp_ns)

    def close(self, stamp_ns: int) -> Sequence[Piece]:
        """Nothing more comes; the pieces that were held back until now."""
        held = self.deltas.rest(cut=self.done is None or self.done.reason == "length")
        if self.answer_ns is None and any(piece.kind == "content" for piece in held):
            self.answer_ns = self.last_ns if self.deltas.thinking else self.first_ns
        if self.end_ns is None:
            self.end_ns = stamp_ns
        return held

    def _events(self, events: Sequence[Event], stamp_ns: int) -> list[Piece]:
        pieces: list[Piece] = []
        for event in events:
            if isinstance(event, Piece):
                self._arrived(stamp_ns)
                self.pieces += 1
                shown = self.deltas.feed(event)
                if self.answer_ns is None and any(piece.kind == "content" for piece in shown):
                    self.answer_ns = stamp_ns
                pieces += shown
            elif isinstance(event, ToolCalls):
                self._arrived(stamp_ns)
                self.tool_calls += encodable(event.calls)
            elif isinstance(event, Done):
                self.done, self.end_ns = event, stamp_ns
            elif isinstance(event, Fault):
                self.fault, self.end_ns = event, stamp_ns
        return pieces

    def _arrived(self, stamp_ns: int) -> None:
        if self.last_ns is None:
            self.first_ns = stamp_ns
        else:
            self._stall_ns = max(self._stall_ns, stamp_ns - self.last_ns)
        self.last_ns = stamp_ns

    def call(
        self,
        *,
        outcome: str,
        error: str | None,
        messages: Sequence[Message],
        num_ctx: int | None,
        alone: bool,
        loopback: bool,
    ) -> Call:
        """The finished record. `alone`: none of our other calls ran before the first piece came."""
        label, done = self._label, self.done or Done()
        ttft_ns = self._since_sent(self.first_ns)
        last_piece_ns = self._since_sent(self.last_ns)
        buffered = not self.tool_calls and looks_buffered(done, ttft_ns, last_piece_ns)
        prefill_ns, prefill_source = done.prefill_ns, None if done.prefill_ns is None else "server"
        if label.cache_state == "cold" and alone and not buffered and timed_in_part(done, ttft_ns):
            assert ttft_ns is not None
            prefill_ns, prefill_source = ttft_ns - (done.load_ns or 0), "client"
        flags: str | None = None
        for flag, holds in (
            ("buffered", buffered),
            ("decode_disagrees", not buffered and decode_disagrees(done, ttft_ns, last_piece_ns)),
            ("odd_figures", done.odd or (self.pieces > 0 and done.output_tokens == 0)),
            ("slow_connect", loopback and (self.connect_ns or 0) > SLOW_CONNECT_NS),
        ):
            flags = add_flag(flags, flag) if holds else flags
        return Call(
            run_id=label.run_id,
            seq=label.seq,
            model_id=label.model_id,
            num_ctx=num_ctx,
            purpose=label.purpose,
            experiment=label.experiment,
            variant=label.variant,
            size=label.size,
            repeat=label.repeat,
            user=label.user,
            started_utc=self._started_utc,
            prompt_chars=sum(map(chars, messages)),
            prompt_tokens_estimate=label.prompt_tokens_estimate,
            messages_sent=len(messages),
            messages_pinned=label.messages_pinned,
            messages_dropped=label.messages_dropped,
            prompt_tokens=done.prompt_tokens,
            cached_tokens=done.cached_tokens,
            cache_state=label.cache_state,
            output_tokens=done.output_tokens,
            pieces=self.pieces,
            connect_ns=self.connect_ns,
            ttft_ns=ttft_ns,
            ttft_answer_ns=self._since_sent(self.answer_ns),
            last_piece_ns=last_piece_ns,
            stall_max_ns=None if self._stall_ns < 0 else self._stall_ns,
            total_ns=self._since_sent(self.end_ns),
            server_total_ns=done.total_ns,
            load_ns=done.load_ns,
            prefill_ns=prefill_ns,
            prefill_source=prefill_source,
            decode_ns=done.decode_ns,
            in_flight=self.in_flight,
            outcome=outcome,
            done_reason=done_reason(done, num_ctx),
            http_status=self.http_status,
            error=error,
            timing_source=self.timing_source,
            flags=flags,
            prompt_hash=prompt_hash(messages),
        )

    def _since_sent(self, stamp_ns: int | None) -> int | None:
        return None if stamp_ns is None or self.sent_ns is None else max(0, stamp_ns - self.sent_ns)


def prompt_hash(messages: Sequence[Message]) -> str:
    """sha256 of the messages as sent, the first 16 hex digits."""
    text = json.dumps([message.to_wire() for message in messages], separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def chars(message: Message) -> int:
    """Characters of a message; content in parts counts by the texts of its parts."""
    parts = message.extra.get("content")
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return len(message.content) + sum(len(text) for text in texts if isinstance(text, str))


def encodable(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`calls` without halves of characters, which could not be shown or sent back."""
    text = json.dumps(calls, ensure_ascii=False)
    whole = whole_characters(text)
    return calls if whole is text else json.loads(whole)


def done_reason(done: Done, num_ctx: int | None) -> str | None:
    """The server's word; `window_full` where the answer ended for length exactly at the end of the window.

    Servers count the last token or do not, so one more is allowed; a longer answer means that the window moved on.
    """
    if done.reason == "length" and num_ctx and done.prompt_tokens is not None and done.output_tokens is not None:
        used = done.prompt_tokens + done.output_tokens
        if num_ctx <= used <= num_ctx + 1:
            return "window_full"
    return None if done.reason is None else whole_characters(done.reason)[:LONGEST_REASON]


def timed_in_part(done: Done, ttft_ns: int | None) -> bool:
    """Whether the server's prefill time covers only a part: from outside it was much longer."""
    if done.prefill_ns is None or ttft_ns is None:
        return False
    outside_ns = ttft_ns - (done.load_ns or 0)
    return (
        outside_ns > done.prefill_ns * CLIENT_PREFILL_RATIO and outside_ns - done.prefill_ns > CLIENT_PREFILL_MARGIN_NS
    )


def looks_buffered(done: Done, ttft_ns: int | None, last_piece_ns: int | None) -> bool:
    """Whether something between held the stream back: all of it came at once, after the time it took to decode."""
    if ttft_ns is None or last_piece_ns is None or done.decode_ns is None or done.decode_ns < BUFFERED_FROM_NS:
        return False
    if (done.output_tokens or 0) < BUFFERED_FROM_TOKENS:
        return False
    waited_ns = ttft_ns - (done.load_ns or 0) - (done.prefill_ns or 0)
    return last_piece_ns - ttft_ns < done.decode_ns / 20 and waited_ns > done.decode_ns * 0.9


def decode_disagrees(done: Done, ttft_ns: int | None, last_piece_ns: int | None) -> bool:
    """Whether server and user see decode speeds over 10 % apart, both over the n − 1 tokens after the first."""
    if ttft_ns is None or last_piece_ns is None or (done.output_tokens or 0) < COMPARE_FROM_TOKENS:
        return False
    seen_ns, decode_ns = last_piece_ns - ttft_ns, done.decode_ns or 0
    return min(seen_ns, decode_ns) >= COMPARE_FROM_NS and abs(seen_ns / decode_ns - 1) > DISAGREE
