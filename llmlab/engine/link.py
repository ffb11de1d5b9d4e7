"""The link to a worker: HTTP on loopback, one connection per request, closed at once when its reader leaves."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httptools


class Refused(Exception):
    """The worker answered with a status that is not 200; `body` is what it said."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body

    @property
    def error(self) -> dict[str, Any]:
        """The `error` object of the body, empty where there is none."""
        try:
            error = json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError):
            return {}
        return error if isinstance(error, dict) else {"message": str(error)}


class Broken(Exception):
    """The connection ended before the answer did: the worker is gone."""


class Response:
    """What the parser of one response has seen so far."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.chunks: list[bytes] = []
        self.complete = False

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)

    def on_message_complete(self) -> None:
        self.complete = True

    def take(self) -> bytes:
        data = b"".join(self.chunks)
        self.chunks.clear()
        return data


class Link:
    """Requests to the worker at `host`:`port`, with its key."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self.host = host
        self.port = port
        self.key = key

    async def ask(self, path: str, body: Any = None) -> Any:
        """The JSON answer of `path` (GET without a body); Refused or Broken."""
        async with self.request(path, body) as chunks:
            return json.loads(b"".join([chunk async for chunk in chunks]))

    async def events(self, path: str, body: Any) -> AsyncGenerator[dict[str, Any]]:
        """The server-sent events of a streaming answer as JSON objects; Refused or Broken."""
        async with self.request(path, body) as chunks:
            rest = b""
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    field, _, value = line.partition(b":")
                    if field in (b"data", b"error") and value.strip() != b"[DONE]":
                        yield json.loads(value)

    @asynccontextmanager
    async def request(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of a 200 answer, chunk by chunk."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as error:
            raise Broken(str(error)) from error
        try:
            writer.write(self.encode(path, body))
            response = Response()
            while not response.status:
                await feed(reader, response)
            if response.status != 200:
                while not response.complete:
                    await feed(reader, response)
                raise Refused(response.status, response.take().decode("utf-8", "replace"))
            yield body_of(reader, response)
        finally:
            writer.transport.abort()

    def encode(self, path: str, body: Any) -> bytes:
        method = "GET" if body is None else "POST"
        data = b"" if body is None else encode_json(body)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + data


async def feed(reader: asyncio.StreamReader, response: Response) -> None:
    try:
        data = await reader.read(1 << 16)
        if data:
            response.parser.feed_data(data)
    except (OSError, httptools.HttpParserError) as error:
        raise Broken(str(error)) from error
    if not data:
        raise Broken("unexpected EOF")


async def body_of(reader: asyncio.StreamReader, response: Response) -> AsyncIterator[bytes]:
    while True:
        if data := response.take():
            yield data
        if response.complete:
            return
        await feed(reader, response)


def encode_json(value: Any) -> bytes:
    """JSON in UTF-8; half a surrogate pair becomes U+FFFD, since the worker refuses it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
