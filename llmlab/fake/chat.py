"""One chat call of the fake server: queue, load, prefill and decode in known time, on either wire."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from llmlab.fake.model import TooLong, answer, read_prompt
from llmlab.fake.state import BrokenOff, FakeModel, Served, sleep_until


class Out(Protocol):
    """Where a call writes its answer."""

    def send_json(self, data: object, status: int = 200) -> None: ...
    def start_stream(self, status: int, headers: Sequence[tuple[str, str]]) -> None: ...
    def send_chunk(self, data: bytes) -> None: ...
    def end_stream(self) -> None: ...


class Chat:
    """One chat call, from its place in the queue to its last line."""

    def __init__(self, out: Out, model: FakeModel, served: Served) -> None:
        self.out, self.model, self.figures = out, model, model.figures
        self.body, self.served = served.body, served
        self.wire: NdjsonWire | SseWire = SseWire(self) if served.path.startswith("/v1") else NdjsonWire(self)
        self.fault = self.figures.faults.get(served.number, self.figures.fault)

    async def answer(self) -> None:
        if self.refused():
            return
        async with self.model.free_slots:
            self.served.started_ns = time.perf_counter_ns()
            if self.fault == "unload":
                self.model.unload()
            window = self.model.window(self.body)
            await self.model.load(window)
            self.served.loaded_ns = time.perf_counter_ns()
            messages = self.body.get("messages") or []
            if self.figures.ignores_system:
                messages = [m for m in messages if m.get("role") != "system"]
            if not messages:
                self.refuse({"error": "messages is empty"}, 400)
                return
            may_cut = self.body.get("truncate") is not False or not self.figures.honours_truncate
            try:
                self.read = read_prompt(messages, window, may_cut, self.figures.chars_per_token)
            except TooLong as fault:
                self.refuse(self.wire.too_long(fault), 400)
                return
            await self.generate(messages)
            if self.fault == "unload_after" or self.body.get("keep_alive") == 0:
                self.model.unload()

    def refused(self) -> bool:
        """Answer at once what never reaches the model."""
        waiting = self.model.running - self.figures.slots
        if self.fault == "busy" or waiting > self.figures.queue_bound:
            self.refuse({"error": "server busy, please try again. maximum pending requests exceeded"}, 503)
        elif self.fault == "refuse":
            self.refuse({"error": "the fake was told to refuse"}, 500)
        elif self.body.get("model") != self.figures.model:
            self.refuse({"error": f"model '{self.body.get('model')}' not found"}, 404)
        elif self.figures.refuses_no_think and self.body.get("think") is False:
            self.refuse({"error": "thinking cannot be turned off"}, 400)
        else:
            return False
        return True

    def refuse(self, data: object, status: int) -> None:
        self.served.status = status
        self.out.send_json(data, status)

    def limit(self) -> tuple[int, str]:
        """The most tokens of this answer, and why it ends there."""
        asked = (self.body.get("options") or {}).get("num_predict") or self.body.get("max_tokens") or 0
        ends = [(self.figures.answer_tokens, "stop")] if asked <= 0 else [(int(asked), "length")]
        if self.figures.stop_after is not None:
            ends.append((self.figures.stop_after, "stop"))
        return (10**9, "length") if self.fault == "endless" else min(ends)

    def tokens(self, messages: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
        """(kind, text) of each token: thinking, then the answer; text is empty for a mute model."""
        thinks = self.figures.thinking_tokens if self.body.get("think") is not False else 0
        yield from (("thinking", f" idea{i}") for i in range(thinks))
        yield from (("content", "" if self.figures.mute else t) for t in answer(self.figures, messages, self.read))

    async def generate(self, messages: list[dict[str, Any]]) -> None:
        served, figures, model = self.served, self.figures, self.model
        depth = 1 + figures.depth_cost * len(self.read) / 1000
        served.read_tokens, served.cached_tokens = len(self.read), model.cache.cached(self.read)
        extra_ns = figures.first_prefill_ns if model.first_prefill else 0
        model.first_prefill = False
        fresh = served.read_tokens - served.cached_tokens
        assert served.loaded_ns is not None
        due_ns = served.loaded_ns + extra_ns + fresh / figures.prefill_tokens_per_s * depth * 1e9
        if self.fault == "hang":
            await asyncio.Event().wait()
        await sleep_until(due_ns)
        model.decoding += 1
        try:
            await self.decode(messages, due_ns, depth)
        finally:
            model.decoding -= 1
            model.cache.keep(self.read)

    async def decode(self, messages: list[dict[str, Any]], due_ns: float, depth: float) -> None:
        served = self.served
        most, reason = self.limit()
        self.out.start_stream(200, self.wire.headers)
        for kind, text in islice(self.tokens(messages), most):
            if served.output_tokens:
                due_ns += self.gap_ns(depth)
                await sleep_until(due_ns)
            served.last_ns = time.perf_counter_ns()
            if served.first_ns is None:
                due_ns = served.first_ns = served.last_ns
            served.output_tokens += 1
            self.wire.piece(kind, text)
            if served.output_tokens == 3 and self.fault in ("die", "error_line"):
                self.break_off()
                return
        if reason == "stop" or served.output_tokens < most:
            reason = "stop"
            await sleep_until(due_ns + self.gap_ns(depth))
            served.last_ns = time.perf_counter_ns()
            served.output_tokens += 1
        if self.fault != "no_done":
            self.wire.done(reason)
        self.out.end_stream()

    def gap_ns(self, depth: float) -> float:
        return self.figures.decode_gap_ns * depth * (1 + self.figures.share * (self.model.decoding - 1))

    def break_off(self) -> None:
        if self.fault == "die":
            raise BrokenOff
        self.out.send_chunk(b'{"error":"the fake runner has stopped"}\n')
        self.out.end_stream()


class NdjsonWire:
    """Ollama's lines."""

    headers = (("Content-Type", "application/x-ndjson"),)

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def line(self, text: str, kind: str = "content", **more: Any) -> None:
        message = {"role": "assistant", "content": "", kind: text}
        data = {"model": self.chat.figures.model, "created_at": utc_now(), "message": message, "done": bool(more)}
        self.chat.out.send_chunk(json.dumps(data | more, separators=(",", ":")).encode() + b"\n")

    def piece(self, kind: str, text: str) -> None:
        self.line(text, kind)

    def done(self, reason: str) -> None:
        served, figures = self.chat.served, self.chat.figures
        if not figures.counts:
            self.line("", done_reason=reason)
            return
        fresh = max(1, served.read_tokens - served.cached_tokens)
        timed = min(1.0, figures.timed_batch / fresh) if figures.timed_batch else 1.0
        more: dict[str, Any] = {
            "done_reason": reason,
            "total_duration": time.perf_counter_ns() - served.arrived_ns,
            "load_duration": served.load_ns,
            "prompt_eval_count": served.read_tokens,
            "prompt_eval_duration": int(served.prefill_ns * timed),
            "eval_count": served.output_tokens,
            "eval_duration": served.decode_ns,
        }
        if figures.reports_cached:
            more["prompt_eval_cached_count"] = served.cached_tokens
        self.line("", **more)

    def too_long(self, fault: TooLong) -> dict[str, Any]:
        return {"error": json.dumps(overflow_error(fault)) if self.chat.figures.refusal_counts else "prompt too long"}


class SseWire:
    """OpenAI's events, with llama-server's timings."""

    headers = (("Content-Type", "text/event-stream"),)

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def event(self, choices: list[dict[str, Any]], **more: Any) -> None:
        data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": self.chat.figures.model}
        raw = json.dumps(data | {"choices": choices} | more, separators=(",", ":"))
        self.chat.out.send_chunk(f"data: {raw}\n\n".encode())

    def piece(self, kind: str, text: str) -> None:
        key = "content" if kind == "content" else "reasoning_content"
        self.event([{"index": 0, "delta": {key: text}, "finish_reason": None}])

    def done(self, reason: str) -> None:
        served = self.chat.served
        self.event([{"index": 0, "delta": {}, "finish_reason": reason}])
        if self.chat.figures.counts and (self.chat.body.get("stream_options") or {}).get("include_usage"):
            timings = {
                "cache_n": served.cached_tokens,
                "prompt_n": served.read_tokens - served.cached_tokens,
                "prompt_ms": served.prefill_ns / 1e6,
                "predicted_n": served.output_tokens,
                "predicted_ms": served.decode_ns / 1e6,
            }
            usage = {"prompt_tokens": served.read_tokens, "completion_tokens": served.output_tokens}
            self.event([], usage=usage | {"total_tokens": sum(usage.values())}, timings=timings)
        self.chat.out.send_chunk(b"data: [DONE]\n\n")

    def too_long(self, fault: TooLong) -> dict[str, Any]:
        return overflow_error(fault)


def overflow_error(fault: TooLong) -> dict[str, Any]:
    counts = {"n_prompt_tokens": fault.prompt_tokens, "n_ctx": fault.window}
    return {"error": {"code": 400, "message": str(fault), "type": "exceed_context_size_error"} | counts}


def utc_now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
