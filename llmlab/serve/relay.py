"""One relayed call: a client's request to the server, the answer's bytes back as they come."""

import asyncio

import httpx

from llmlab.client.arrivals import Arrivals, Chunk
from llmlab.client.door import Door, arrivals_of
from llmlab.errors import LabError, ServerError
from llmlab.serve.account import Account
from llmlab.serve.asgi import Headers, Send
from llmlab.serve.asked import Asked
from llmlab.serve.fitting import Fitting, Prepared
from llmlab.serve.ledger import Ledger

ANSWER_STARTS = (b"{", b"\xef\xbb\xbf", b"data:", b":", b"event:", b"id:", b"retry:")
PASSED_ON = ("content-type", "retry-after", "www-authenticate")
NO_BUFFERING: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Cut(Exception):
    """The server broke off after the client had been sent a part: the client's answer must not end well."""


class Relay:
    """Relays one call; `started` says whether the client has been sent anything of the answer."""

    def __init__(self, ledger: Ledger, asked: Asked, send: Send) -> None:
        self.account = Account(ledger, asked)
        self.started = False
        self._door = ledger.target.client.door
        self._asked = asked
        self._send = send

    @property
    def headers(self) -> Headers:
        """What is known of the call when its answer begins; nothing where no call was made."""
        account = self.account
        if not account.begun:
            return []
        headers: Headers = [(b"x-llmlab-call", account.id.encode())]
        if account.prepared.fit is not None:
            headers.append((b"x-llmlab-dropped", str(account.prepared.dropped).encode()))
        verdict = "suspected" if account.looks_too_long() else None
        if account.call is not None:
            verdict = account.call.cut
        if verdict is not None:
            headers.append((b"x-llmlab-cut", verdict.encode()))
        return headers

    async def run(self, fitting: Fitting) -> None:
        """Relay the call. Raises LabError where the client is still to be answered, Cut where it was cut off."""
        account = self.account
        try:
            await self._relay(fitting)
        except asyncio.CancelledError:
            account.left()
            raise
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            fault = account.broken(error)
            if self.started:
                raise Cut from error
            raise fault from error
        except LabError as error:
            account.close("error", error)
            if self.started:
                raise Cut from error
            raise
        finally:
            account.close("error")  # where nothing above has ended it, the fault is our own
            if account.arrivals is not None:
                await account.arrivals.aclose()

    async def _relay(self, fitting: Fitting) -> None:
        prepared = await fitting.prepare(self._asked)
        response = await self._ask(prepared)
        if not response.is_success:
            raw = await self._door.read(response)
            smaller = await fitting.again(self._asked, prepared, response.status_code, raw)
            if smaller is None:
                await self._refuse(response, raw)
                return
            response = await self._ask(smaller)
            if not response.is_success:
                await self._refuse(response, await self._door.read(response))
                return
        await self._answer(response)

    async def _ask(self, prepared: Prepared) -> httpx.Response:
        request = self._door.request("POST", self._asked.protocol.path, prepared.raw)
        self.account.begin(prepared, request)
        return await self._door.send(request)

    async def _refuse(self, response: httpx.Response, raw: bytes) -> None:
        """Pass on what the server says where it says it in JSON; else say it in the protocol's shape."""
        self.account.record.http_status = response.status_code
        fault = self._door.faults.of_status(response, raw, self._asked.protocol.path, model=self._asked.model or None)
        self.account.close("error", fault)
        if response.status_code < 400 or not raw.lstrip().startswith(b"{"):
            raise fault
        raw = scrubbed(self._door, raw)
        await self._head(response, [(b"content-length", str(len(raw)).encode())])
        await self._send({"type": "http.response.body", "body": raw})

    async def _answer(self, response: httpx.Response) -> None:
        account = self.account
        arrivals = arrivals_of(response)
        account.answered(response, arrivals)
        await arrivals.more()
        chunks = arrivals.take()
        self._see_that_it_answers(response, joined(chunks))
        if self._asked.streams:
            await self._stream(response, arrivals, chunks)
        else:
            await self._whole(response, arrivals, chunks)

    async def _stream(self, response: httpx.Response, arrivals: Arrivals, chunks: list[Chunk]) -> None:
        """Send what came at once, and read it only then."""
        account, send = self.account, self._send
        await self._head(response, NO_BUFFERING)
        while chunks:
            await send({"type": "http.response.body", "body": joined(chunks), "more_body": True})
            account.feed(chunks)
            await arrivals.more()
            chunks = arrivals.take()
        account.ended()
        await send({"type": "http.response.body", "body": b""})

    async def _whole(self, response: httpx.Response, arrivals: Arrivals, chunks: list[Chunk]) -> None:
        """An answer in one piece is sent when all of it is there and judged."""
        parts: list[bytes] = []
        while chunks:
            self.account.feed(chunks)
            parts.append(joined(chunks))
            await arrivals.more()
            chunks = arrivals.take()
        self.account.ended()
        raw = b"".join(parts)
        await self._head(response, [(b"content-length", str(len(raw)).encode())])
        await self._send({"type": "http.response.body", "body": raw})

    async def _head(self, response: httpx.Response, more: Headers) -> None:
        self.started = True
        passed = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name in PASSED_ON
            if (value := response.headers.get(name)) is not None
        ]
        headers = [*passed, *more, *self.headers]
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})

    def _see_that_it_answers(self, response: httpx.Response, start: bytes) -> None:
        """A 200 with a page of HTML, or with nothing, is no answer. Raises ServerError."""
        kind = response.headers.get("content-type", "")
        if "html" not in kind and start.lstrip().startswith(ANSWER_STARTS):
            return
        shown, path = self._door.faults.shown, self._asked.protocol.path
        said = (
            "an HTML page" if "html" in kind or start.lstrip()[:1] == b"<" else "something else" if start else "nothing"
        )
        raise ServerError(f"{shown} answered {path} with {said}", "Check the address that llmlab serves")


def scrubbed(door: Door, raw: bytes) -> bytes:
    """An error body without our secrets, which servers like to repeat; unchanged where there are none."""
    text = raw.decode("utf-8", "surrogateescape")
    clean = door.faults.scrub(text)
    return raw if clean == text else clean.encode("utf-8", "surrogateescape")


def joined(chunks: list[Chunk]) -> bytes:
    return chunks[0][1] if len(chunks) == 1 else b"".join([data for _, data in chunks])
