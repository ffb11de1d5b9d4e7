"""One chat while it streams."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import httpx

from llmlab.call import Call, Label
from llmlab.client import ollama, openai
from llmlab.client.arrivals import Arrivals, Chunk
from llmlab.client.door import arrivals_of, json_bytes
from llmlab.client.events import Piece
from llmlab.client.options import ChatOptions
from llmlab.client.record import Record
from llmlab.errors import LabError, ServerError
from llmlab.messages import Message

if TYPE_CHECKING:
    from llmlab.client import Client

NO_ANSWER = ("load", "unload")


class ChatStream:
    """Yields the pieces of an answer; leaving the context ends the call, whatever happened, with one `Call`.

    Iterating raises Unreachable, ServerError or SilenceTimeout, after every piece that arrived was yielded. Leaving
    early, or being cancelled, gives outcome `cancelled` and closes the connection at once.
    """

    def __init__(self, client: "Client", messages: Sequence[Message], options: ChatOptions, label: Label) -> None:
        self._client = client
        self._messages = tuple(messages)
        self._options = options
        self._record = Record(ollama.OllamaWire(), label)
        self._accepts_no_answer = label.purpose == "warmup" or not self._messages
        self._ready: deque[Piece] = deque()
        self._request: httpx.Request | None = None
        self._arrivals: Arrivals | None = None
        self._call: Call | None = None
        self._error: LabError | None = None
        self._api: str | None = None
        self._include_usage = False
        self._total_s = client.total_s
        self._deadline_s: float | None = None
        self._place = 0  # the how-manieth chat of the client; 0 until it begins
        self._alone: bool | None = None
        self._whole = False  # whether the answer is wanted only when it is complete

    @property
    def call(self) -> Call:
        """The record; there as soon as the iteration or the context has ended."""
        if self._call is None:
            raise RuntimeError("the call has not ended yet")
        return self._call

    @property
    def text(self) -> str:
        """The answer so far, without reasoning."""
        return self._record.deltas.text

    @property
    def thinking(self) -> str:
        """The reasoning so far."""
        return self._record.deltas.thinking

    @property
    def sent_ns(self) -> int | None:
        """When the request was written, on the client's clock: what the durations of the `Call` count from."""
        return None if self._arrivals is None else self._arrivals.sent_ns

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """What the model asked for, in order."""
        return self._record.tool_calls

    async def __aenter__(self) -> "ChatStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the call now; without effect once it has ended."""
        if self._call is None:
            self._end("cancelled")
        if self._arrivals is not None:
            await self._arrivals.aclose()

    def __aiter__(self) -> "ChatStream":
        return self

    async def __anext__(self) -> Piece:
        while not self._ready:
            if self._call is not None:
                self._raise_error()
                raise StopAsyncIteration
            await self._step()
        return self._ready.popleft()

    async def read(self) -> None:
        """Read the answer to its end, for those who want it only then; raises as iterating does.

        Nobody sees the pieces, and so no task is woken for each of them.
        """
        self._whole = True
        while self._call is None:
            await self._step()
        self._ready.clear()
        self._raise_error()

    def _raise_error(self) -> None:
        """Raise what ended the call, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _step(self) -> None:
        """Open the answer or take in what comes next. An error ends the call, and is kept to be raised."""
        try:
            if self._total_s is None:
                await self._go_on()
            else:
                await self._go_on_within(self._total_s)
        except asyncio.CancelledError:
            self._take_waiting()
            self._end("cancelled")
            if self._arrivals is not None:
                await self._arrivals.aclose()
            raise
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            self._end_broken(error)
        except LabError as error:
            self._end("error", error)

    async def _go_on(self) -> None:
        arrivals = self._arrivals
        if arrivals is None:
            await self._open()
        elif self._whole:
            await arrivals.pour(self._take_in)
        else:
            await arrivals.more()
            self._take(arrivals.take())

    async def _go_on_within(self, total_s: float) -> None:
        """Go on within the limit for the whole of the answer."""
        if self._deadline_s is None:
            self._deadline_s = asyncio.get_running_loop().time() + total_s
        try:
            async with asyncio.timeout_at(self._deadline_s):
                await self._go_on()
        except TimeoutError:
            self._take_waiting()
            what = f"{self._client.door.faults.shown} was stopped: the answer took longer than {total_s:g} s"
            self._end("timeout", ServerError(what, http_status=self._record.http_status))

    def _take_waiting(self) -> None:
        """What has arrived and waits to be read belongs to the record, however the call ends."""
        if self._arrivals is not None and (waiting := self._arrivals.take()):
            with suppress(LabError):
                self._take(waiting)

    def _take_in(self, chunks: Sequence[Chunk]) -> bool:
        """Take in what nobody waits to see; whether it was the last."""
        self._take(chunks)
        self._ready.clear()
        return self._call is not None

    def _take(self, chunks: Sequence[Chunk]) -> None:
        """Read what arrived; nothing means that the body has ended."""
        record, ready = self._record, self._ready
        for stamp_ns, data in chunks:
            ready.extend(record.feed(stamp_ns, data))
        if self._alone is None and record.first_ns is not None:
            self._alone = self._client.started == self._place
        if record.wire.ended:
            self._end_answered()
        elif not chunks:
            ready.extend(record.close_wire(self._client.clock()))
            self._end_answered()

    def prepare(self) -> None:
        """Build the request ahead of its moment, so that iterating only sends it.

        Without effect while the client does not know the server's language.
        """
        self._api = self._client.known_api
        if self._api is not None:
            self._build(include_usage=self._client.usage_option is not False)

    def _build(self, include_usage: bool) -> None:
        messages, options = self._messages, self._options
        if self._api == "ollama":
            self._record.wire, path = ollama.OllamaWire(), ollama.PATH
            body = ollama.request_body(messages, options)
        else:
            self._record.wire, path = openai.OpenAIWire(), openai.PATH
            body = openai.request_body(messages, options, include_usage=include_usage)
        self._include_usage = include_usage
        self._request = self._client.door.request("POST", path, json_bytes(body))

    async def _open(self) -> None:
        """Send the request and see that an answer begins."""
        client = self._client
        if not self._place:
            self._record.start(client.enter())
            self._place = client.started
        await client.api()
        if self._request is None:
            self.prepare()
        response = await self._send()
        if self._api == "openai" and self._include_usage:
            if client.usage_option is None and response.status_code == 400:
                await client.door.read(response)
                self._build(include_usage=False)
                response = await self._send()
                if response.is_success:
                    client.usage_option = False
            elif response.is_success:
                client.usage_option = True
        if not response.is_success:
            await self._refused(response)
        self._arrivals = arrivals_of(response)

    async def _send(self) -> httpx.Response:
        assert self._request is not None
        response = await self._client.door.send(self._request)
        self._record.http_status = response.status_code
        return response

    async def _refused(self, response: httpx.Response) -> NoReturn:
        client, options = self._client, self._options
        path = ollama.PATH if self._api == "ollama" else openai.PATH
        raw = await client.door.read(response)
        error = client.door.faults.of_status(response, raw, path, model=options.model, thinking=bool(options.think))
        if response.status_code == 404 and isinstance(error.body, dict):
            error = await client.refusal(options.model, error)
        raise error

    def _end_answered(self) -> None:
        """The wire has read the end, a fault, or the body ended without either."""
        record, faults = self._record, self._client.door.faults
        assert record.http_status is not None
        if record.fault is not None:
            self._end("error", faults.of_stream(record.fault, record.http_status))
        elif record.done is None:
            self._end("incomplete", faults.incomplete())
        elif record.done.reason in NO_ANSWER and not record.pieces and not self._accepts_no_answer:
            self._end("error", faults.nothing_generated(record.done.reason))
        else:
            self._end("ok")
            if self._arrivals is not None:
                self._arrivals.finish()

    def _end_broken(self, error: Exception) -> None:
        """The transport failed: before the answer, in the middle of it, or by silence."""
        client, answering = self._client, self._arrivals is not None
        if answering and not isinstance(error, httpx.TimeoutException):
            # What came without a newline before the cut may still be the end of the answer.
            self._ready.extend(self._record.close_wire(client.clock()))
            if self._record.wire.ended:
                self._end_answered()
                return
        outcome = "timeout" if isinstance(error, httpx.TimeoutException) else "incomplete" if answering else "error"
        self._end(outcome, client.door.faults.of_transport(error, client.timeout_s, answering=answering))

    def _end(self, outcome: str, error: LabError | None = None) -> None:
        """Make the one `Call`."""
        client, record = self._client, self._record
        if self._call is not None:
            return
        stamps: Arrivals | None = self._arrivals
        if stamps is None and self._request is not None:
            stamps = self._request.extensions.get("arrivals")
        if stamps is not None:
            record.sent_ns, record.connect_ns, record.timing_source = stamps.sent_ns, stamps.connect_ns, stamps.source
        self._ready.extend(record.close(client.clock()))
        self._error = error
        self._call = record.call(
            outcome=outcome,
            error=None if error is None else str(error),
            messages=self._messages,
            num_ctx=self._options.num_ctx if self._api != "openai" else None,
            alone=bool(self._alone) and not record.in_flight,
            loopback=client.door.loopback,
        )
        if self._place:
            client.leave()
