"""The front: a child process that speaks Ollama's API and keeps the worker.

It reads one line of JSON (a `Setup`) from standard input, answers with one line of JSON on standard output (`url` and
`model`, or `error` and `hint`), and lives until standard input closes.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmlab.engine.card import Card
from llmlab.engine.child import take_stdout, when_parent_ends
from llmlab.engine.desk import Desk
from llmlab.engine.runner import Runner
from llmlab.errors import EngineError
from llmlab.garbage import frozen_heap

if TYPE_CHECKING:
    import uvicorn


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How to serve which model; `default` is whether `gguf` are the default weights."""

    gguf: str
    default: bool
    host: str
    port: int
    num_parallel: int
    max_queue: int
    threads: int | None
    num_ctx: int

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = Setup(**json.loads(sys.stdin.buffer.readline()))
    out = take_stdout()
    try:
        asyncio.run(Front(setup).run(out))
    except EngineError as error:
        say(out, {"error": error.what, "hint": error.hint})
        os._exit(1)


def say(out: int, message: dict[str, object]) -> None:
    os.write(out, json.dumps(message).encode() + b"\n")


class Front:
    """The server of one setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        path = Path(setup.gguf)
        self.card = (Card.of_default if setup.default else Card.of_file)(path, setup.num_ctx)
        self.desk = Desk(self.start_runner, setup.max_queue)

    def start_runner(self, n_ctx: int) -> Awaitable[Runner]:
        setup = self.setup
        return Runner.start(
            gguf=setup.gguf,
            n_ctx=n_ctx,
            slots=setup.num_parallel,
            threads=setup.threads,
            template=self.card.template,
        )

    async def run(self, out: int) -> None:
        """Listen, load the model, tell the parent, and serve until it ends."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        when_parent_ends(sys.stdin.buffer, lambda: loop.call_soon_threadsafe(over.set))
        with listen(self.setup.host, self.setup.port) as listener:
            loading = asyncio.create_task(self.preload())
            ending = asyncio.create_task(over.wait())
            server = make_server(self.card, self.desk, self.setup.host)
            await asyncio.wait({loading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                with frozen_heap():
                    serving = asyncio.create_task(server.serve(sockets=[listener]))
                    say(out, {"url": url_of(listener), "model": self.card.name})
                    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            await self.desk.close()
        os._exit(0)

    async def preload(self) -> None:
        async with self.desk.lend(self.card.window(), None):
            pass


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; EngineError where the port is taken or the host is not ours."""
    try:
        family, kind, _proto, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        if os.name == "posix":  # elsewhere it would let two programs share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise EngineError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            "Another server, such as Ollama, may be running there: stop it, or use it as it is",
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(card: Card, desk: Desk, host: str) -> "uvicorn.Server":
    import uvicorn

    from llmlab.engine.api import Api
    from llmlab.engine.service import Service

    config = uvicorn.Config(
        Api(Service(card, desk), host),
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=3600,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


if __name__ == "__main__":
    main()
