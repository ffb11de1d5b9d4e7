"""Target: the server and the model that a command talks to, found or started."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from llmlab.budget import DEFAULT_NUM_CTX
from llmlab.client import Client
from llmlab.errors import ServerError, Unreachable
from llmlab.model import Model, ServerFacts
from llmlab.printable import printable_line
from llmlab.settings import Server, find_server

DEFAULT_MODEL = "qwen2.5:3b"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for: `host` may be the word `engine`; None means not said.

    An embedded engine is started with the window `num_ctx`, so that the first call need not load the model anew.
    """

    host: str | None = None
    api: str = "auto"
    model: str | None = None
    timeout_s: float = 600.0
    num_ctx: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers and a model it has. `window` is set only on the OpenAI wire, where the server tells it."""

    client: Client
    server: Server
    facts: ServerFacts
    api: str
    model: Model
    window: int | None = None

    def num_ctx(self, asked: int | None) -> int | None:
        """The window to work in: as asked, else Ollama's default of ours, or what another server says."""
        return asked or (DEFAULT_NUM_CTX if self.api == "ollama" else self.window)


@asynccontextmanager
async def open_target(choice: Choice, say: Callable[[str], None]) -> AsyncIterator[Target]:
    """The chosen server and model. Raises Unreachable, ServerError, UsageError, EngineError; `say` as `open_server`."""
    async with open_server(choice, say) as client:
        api = await client.api()
        model = await choose_model(client, choice.model, say)
        window = await client.window(model.name) if api == "openai" else None
        yield Target(client, client.server, await client.server_facts(), api, model, window)


@asynccontextmanager
async def open_server(choice: Choice, say: Callable[[str], None]) -> AsyncIterator[Client]:
    """Connect to the chosen server, or start the embedded engine where nothing was chosen and nothing listens.

    `say` gets the lines a person should know (on stderr).
    """
    async with AsyncExitStack() as stack:
        asked = choice.host == "engine"
        server = _start_engine(stack, choice, say) if asked else find_server(choice.host, choice.api)
        client = await stack.enter_async_context(Client(server, timeout_s=choice.timeout_s))
        try:
            await client.api()
        except Unreachable:
            if choice.host or choice.model or server.source != "default":
                raise
            say(f"nothing listens at {server.shown}: starting the embedded engine")
            server = _start_engine(stack, choice, say)
            client = await stack.enter_async_context(Client(server, timeout_s=choice.timeout_s))
        yield client


def _start_engine(stack: AsyncExitStack, choice: Choice, say: Callable[[str], None]) -> Server:
    from llmlab.engine import Engine, Lines

    engine = stack.enter_context(Engine.start(num_ctx=choice.num_ctx or DEFAULT_NUM_CTX, on_progress=Lines(sys.stderr)))
    say(printable_line(f"embedded engine: {engine.model}"))
    return replace(find_server(engine.url, "ollama", {}), source="engine")


async def choose_model(client: Client, name: str | None, say: Callable[[str], None]) -> Model:
    """The model of that name; without one the only one loaded, else the newest installed, which is said."""
    if name:
        return await client.model(name)
    installed = await client.models()
    if not installed:
        raise ServerError("the server has no model", f"Install one with: ollama pull {DEFAULT_MODEL}")
    loaded = await client.loaded()
    if len(loaded) == 1:
        chosen, why = loaded[0].name, "the only one loaded"
    else:
        chosen, why = installed[0].name, "the newest installed"
    if len(installed) > 1:
        say(printable_line(f"model: {chosen} ({why}; choose another with -m)"))
    return await client.model(chosen)
