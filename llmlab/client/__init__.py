"""The one streaming client: asks a model on either wire, and measures what happens."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from llmlab.call import Label
from llmlab.client import facts
from llmlab.client.door import Door, json_bytes, unreadable
from llmlab.client.events import Piece
from llmlab.client.faults import overflow_counts, unknown_model
from llmlab.client.lines import parse
from llmlab.client.options import ChatOptions
from llmlab.client.stream import ChatStream
from llmlab.errors import LabError, ServerError, SilenceTimeout
from llmlab.messages import Message
from llmlab.model import LoadedModel, Model, ServerFacts

if TYPE_CHECKING:
    from llmlab.settings import Server

__all__ = ["ChatOptions", "ChatStream", "Client", "Piece", "overflow_counts"]

FACTS_SILENCE_S = 30.0


class Client:
    """Asks one server; an async context manager, for one event loop.

    `timeout_s` is how long the server may be silent, before the first token and between lines; `total_s` a limit for
    a whole answer; `clock` gives nanoseconds. Without `transport` direct connections stamp bytes as they arrive.
    `in_flight` counts the chats under way, `started` those begun so far.
    """

    def __init__(
        self,
        server: "Server",
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        timeout_s: float = 600.0,
        total_s: float | None = None,
    ) -> None:
        self.server = server
        self.clock = clock
        self.timeout_s = timeout_s
        self.total_s = total_s
        self.door = Door(server, transport, clock, timeout_s)
        self.in_flight = 0
        self.started = 0
        self.usage_option: bool | None = None  # whether the server takes stream_options; None until known
        self._api: str | None = None if server.api == "auto" else server.api
        self._finding = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Client({self.door.faults.shown})"

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self.door.aclose()

    def chat(self, messages: Sequence[Message], options: ChatOptions, label: Label = Label()) -> ChatStream:
        """A chat; it is sent when the stream is first iterated."""
        return ChatStream(self, messages, options, label)

    async def connect(self, n: int) -> None:
        """Open connections until `n` idle ones are there, ahead of a burst."""
        try:
            await self.door.connect(n)
        except httpx.HTTPError as error:
            raise self.door.faults.of_transport(error, self.timeout_s, answering=False) from error

    @property
    def known_api(self) -> str | None:
        """The server's language where it is known already."""
        return self._api

    async def api(self) -> str:
        """The server's language, `ollama` or `openai`, found out once."""
        if self._api is None:
            async with self._finding:
                if self._api is None:
                    self._api = await self._find_api()
        return self._api

    async def _find_api(self) -> str:
        try:
            if facts.version_of(await self._ask("GET", "/api/version")) is not None:
                return "ollama"
        except SilenceTimeout:
            raise
        except ServerError as error:
            # What refuses everybody would refuse the next question too; other servers just do not know the path.
            if error.http_status and (error.http_status < 400 or error.http_status in (401, 403, 407, 502, 503, 504)):
                raise
        listed = await self._look("/v1/models")
        if isinstance(listed, dict) and isinstance(listed.get("data"), list):
            return "openai"
        raise ServerError(
            f"{self.door.faults.shown} answers neither like Ollama nor like an OpenAI-compatible server",
            "Check the address, or name its language with --api",
        )

    async def server_facts(self) -> ServerFacts:
        """Who answers. Kinds of OpenAI-compatible servers are told apart by what only they offer."""
        version_body = await self._look("/api/version")
        version = facts.version_of(version_body)
        if version is not None:
            named = "llmlab" in json.dumps(version_body).lower()
            return ServerFacts(kind="llmlab" if named else "ollama", version=version)
        if await self.api() == "ollama":
            return ServerFacts(kind="ollama")
        listed, props = await self._look("/v1/models"), await self._look("/props")
        owner = facts.owner_of(listed)
        if owner == "llamacpp" or facts.props_window(props) is not None:
            return ServerFacts(kind="llama-server", version=facts.build_of(props))
        if owner == "vllm" or any(facts.whole(item.get("max_model_len")) for item in facts.entries(listed, "data")):
            return ServerFacts(kind="vllm", version=facts.version_of(await self._look("/version")))
        if facts.entries(await self._look("/api/v0/models"), "data"):
            return ServerFacts(kind="lmstudio")
        return ServerFacts(kind="openai")

    async def models(self) -> list[Model]:
        """The installed models, newest first."""
        if await self.api() == "ollama":
            return facts.ollama_models(await self._ask("GET", "/api/tags"))
        return facts.openai_models(await self._ask("GET", "/v1/models"))

    async def refusal(self, name: str, error: ServerError) -> ServerError:
        """What a 404 for model `name` means: mostly that there is none, and then which ones there are."""
        try:
            names = [model.name for model in await self.models()]
        except LabError:
            return error
        if facts.full_name(name) in map(facts.full_name, names):
            return error
        ollama = await self.api() == "ollama"
        return unknown_model(name, self.door.faults.shown, names, ollama=ollama, body=error.body)

    async def loaded(self) -> list[LoadedModel]:
        """The models in memory; on OpenAI-compatible servers where the server tells."""
        if await self.api() == "ollama":
            return facts.ollama_loaded(await self._ask("GET", "/api/ps"))
        lmstudio = await self._look("/api/v0/models")
        if facts.entries(lmstudio, "data"):
            return facts.lmstudio_loaded(lmstudio)
        if (await self.server_facts()).kind not in ("llama-server", "vllm"):
            return []
        return [LoadedModel(name=model.name, num_ctx=await self.window(model.name)) for model in await self.models()]

    async def model(self, name: str) -> Model:
        """One model; ServerError with status 404 naming the models there are where it is unknown."""
        if await self.api() == "openai":
            models = await self.models()
            known = next((model for model in models if model.name == name), None)
            if known is None:
                raise unknown_model(name, self.door.faults.shown, [model.name for model in models], ollama=False)
            return known
        try:
            show = await self._ask("POST", "/api/show", {"model": name})
        except ServerError as error:
            if error.http_status == 404:
                raise await self.refusal(name, error) from error
            raise
        return facts.ollama_one(name, await self._ask("GET", "/api/tags"), show)

    async def window(self, name: str) -> int | None:
        """The window of model `name` in tokens on an OpenAI-compatible server; None where unknown, and for Ollama."""
        if await self.api() == "ollama":
            return None
        window = facts.props_window(await self._look("/props"))
        if window is None:
            window = facts.whole(facts.find_entry(await self._look("/v1/models"), name).get("max_model_len"))
        if window is None:
            entry = facts.find_entry(await self._look("/api/v0/models"), name)
            window = facts.whole(entry.get("loaded_context_length"))
        return window

    def enter(self) -> int:
        """A chat begins; how many others are under way."""
        others = self.in_flight
        self.in_flight += 1
        self.started += 1
        return others

    def leave(self) -> None:
        """A chat has ended."""
        self.in_flight -= 1

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer to a question about the server."""
        door, silence_s = self.door, min(self.timeout_s, FACTS_SILENCE_S)
        content = None if body is None else json_bytes(body)
        try:
            response = await door.send(door.request(method, path, content, silence_s=silence_s))
            raw = await door.read(response)
        except httpx.HTTPError as error:
            raise door.faults.of_transport(error, silence_s, answering=False) from error
        if not response.is_success:
            raise door.faults.of_status(response, raw, path)
        answer = parse(raw)
        if answer is None:
            raise unreadable(door.faults.shown, path)
        return answer

    async def _look(self, path: str) -> Any:
        """The JSON answer of a path that the server may not have; None then."""
        try:
            return await self._ask("GET", path)
        except ServerError:
            return None
