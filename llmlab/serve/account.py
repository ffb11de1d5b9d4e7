"""The account of one relayed call: what is measured while its bytes pass, and the row it becomes."""

import asyncio
import json
from dataclasses import replace

import httpx

from llmlab import cut
from llmlab.call import Call, Label, add_flag, new_id
from llmlab.client.arrivals import Arrivals, Chunk
from llmlab.client.record import Record
from llmlab.client.stream import NO_ANSWER
from llmlab.errors import LabError
from llmlab.serve.asked import Asked
from llmlab.serve.fitting import Prepared, as_it_came
from llmlab.serve.ledger import Known, Ledger
from llmlab.tokens import estimate_messages


class Account:
    """Measures one relayed call and records it once, however it ends."""

    def __init__(self, ledger: Ledger, asked: Asked) -> None:
        self.id = new_id()
        self.prepared = as_it_came(asked)
        self.arrivals: Arrivals | None = None
        self.record = Record(asked.protocol.wire(), Label())
        self.call: Call | None = None
        self._ledger = ledger
        self._client = ledger.target.client
        self._asked = asked
        self._request: httpx.Request | None = None
        self._place = 0
        self._alone: bool | None = None

    @property
    def begun(self) -> bool:
        """Whether the server has been asked, so that there is or will be a row."""
        return self._place > 0

    def begin(self, prepared: Prepared, request: httpx.Request) -> None:
        """The request is about to be sent (for the second time, where the first was refused)."""
        self.prepared, self._request = prepared, request
        if not self._place:
            self.record.start(self._client.enter())
            self._place = self._client.started

    def answered(self, response: httpx.Response, arrivals: Arrivals) -> None:
        """The head of an answer is there."""
        self.arrivals = arrivals
        self.record.http_status = response.status_code

    def feed(self, chunks: list[Chunk]) -> None:
        """Bytes of the answer; what comes after its end is of no interest."""
        record = self.record
        if record.wire.ended:
            return
        for stamp_ns, data in chunks:
            record.feed(stamp_ns, data)
        if self._alone is None and record.first_ns is not None:
            self._alone = self._client.started == self._place

    def ended(self) -> None:
        """The body has ended as HTTP has it; what it said decides how the call ended."""
        record, faults = self.record, self._client.door.faults
        if not record.wire.ended:
            record.close_wire(self._client.clock())
        if record.fault is not None:
            self.close("error", faults.of_stream(record.fault, record.http_status or 0))
        elif record.done is None:
            self.close("incomplete", faults.incomplete())
        elif record.done.reason in NO_ANSWER and not record.pieces:
            self.close("error", faults.nothing_generated(record.done.reason))
        else:
            self.close("ok")

    def left(self) -> None:
        """The client is gone; an answer that had reached its end is an answer."""
        if self.record.wire.ended:
            self.ended()
        else:
            self.close("cancelled")

    def broken(self, error: Exception) -> LabError:
        """The way to the server failed; the error for the client."""
        client, answering = self._client, self.arrivals is not None
        timed_out = isinstance(error, httpx.TimeoutException)
        if answering and not timed_out:
            # What came without a newline before the cut may still be the end of the answer.
            self.record.close_wire(client.clock())
            if self.record.wire.ended:
                self.ended()
        fault = client.door.faults.of_transport(error, client.timeout_s, answering=answering)
        self.close("timeout" if timed_out else "incomplete" if answering else "error", fault)
        return fault

    def close(self, outcome: str, error: LabError | None = None) -> None:
        """Make the one call and see to its row."""
        if self.call is not None or not self._place:
            return
        client, record, asked = self._client, self.record, self._asked
        stamps = self.arrivals or (self._request.extensions.get("arrivals") if self._request else None)
        if stamps is not None:
            record.sent_ns, record.connect_ns, record.timing_source = stamps.sent_ns, stamps.connect_ns, stamps.source
        record.close(client.clock())
        call = record.call(
            outcome=outcome,
            error=None if error is None else str(error),
            messages=self.prepared.messages,
            num_ctx=self.prepared.num_ctx,
            alone=bool(self._alone) and not record.in_flight,
            loopback=client.door.loopback,
        )
        client.leave()
        call = replace(
            call,
            id=self.id,
            run_id=self._ledger.run_id,
            seq=self._ledger.next_seq(),
            prompt_tokens_estimate=estimate_messages(self.prepared.messages),
            messages_pinned=asked.pinned,
            messages_dropped=self.prepared.dropped,
        )
        if not asked.streams:
            # One body holds the whole answer: its arrival is no first token.
            flags = add_flag(call.flags, "unstreamed")
            call = replace(call, ttft_ns=None, ttft_answer_ns=None, last_piece_ns=None, flags=flags)
        self.call = self._judged(call, self._ledger.remembered(asked.model))
        self._ledger.metrics.count(asked.protocol.path, self.call)
        self._save(self.call)

    def looks_too_long(self) -> bool:
        """Whether the prompt, by the estimate, is longer than the window it goes into."""
        known, window = self._ledger.remembered(self._asked.model), self.prepared.window
        if window is None or known is None or not known.pairs:
            return False
        return known.estimator.messages(self.prepared.messages) > window

    def _judged(self, call: Call, known: Known | None) -> Call:
        """`call` with the verdict on its prompt, as far as it can be told without asking the server again."""
        window = call.num_ctx_loaded or self.prepared.window
        if known is None or window is None or call.prompt_tokens is None:
            return call
        estimate = known.estimator.messages(self.prepared.messages)
        evidence = cut.suspicion(call, estimate, bool(known.pairs), window)
        return replace(call, cut="no" if evidence is None else "suspected", cut_evidence=evidence)

    def _save(self, call: Call) -> None:
        ledger, model = self._ledger, self._asked.model
        known = ledger.remembered(model)
        if known is not None and ledger.window_is_fresh(known, call.num_ctx):
            self._write(call, known)
        elif call.outcome in ("ok", "incomplete") or known is not None:
            ledger.later(self._look_up_and_write(call))
        else:
            self._write(call, known)

    async def _look_up_and_write(self, call: Call) -> None:
        known = None
        try:
            known = await self._ledger.known(self._asked.model)
            if call.outcome == "ok":
                await self._ledger.window(known, call.num_ctx)
        except (LabError, asyncio.CancelledError):
            pass
        self._write(call, known)

    def _write(self, call: Call, known: Known | None) -> None:
        if known is not None:
            window = known.windows.get(call.num_ctx)
            call = replace(call, model_id=known.model.id, num_ctx_loaded=window.tokens if window else None)
            call = self._judged(call, known)
            known.learn(call)
        self.call = call
        self._ledger.metrics.cut(call)
        texts = None
        if self._ledger.keep_text:
            texts = json.dumps([m.to_wire() for m in self.prepared.messages]), self.record.deltas.text
        self._ledger.record(call, texts)
