"""The server: everything put together, from the socket to the database, and taken apart again."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

import uvicorn

from llmlab.errors import Exit, StoreError, UsageError
from llmlab.garbage import frozen_heap
from llmlab.printable import printable_line
from llmlab.recorded import recorded
from llmlab.serve.attendance import Attendance
from llmlab.serve.chat_events import ChatEvents
from llmlab.serve.connection import connections
from llmlab.serve.fitting import Fitting
from llmlab.serve.gate import Gate
from llmlab.serve.guard import Guard, Rules, serve_key
from llmlab.serve.ledger import Ledger
from llmlab.serve.metrics import Metrics
from llmlab.serve.pages import build_pages
from llmlab.serve.passage import Passage
from llmlab.serve.proxy import Proxy
from llmlab.serve.quick_server import QuickServer
from llmlab.serve.router import Router
from llmlab.serve.sessions import Sessions
from llmlab.serve.settings import ServeSettings
from llmlab.settings import database_path
from llmlab.store import Store
from llmlab.target import Target, open_target

BACKLOG = 2048
KEEP_ALIVE_S = 30
AFTER_GRACE_S = 1.0
CHECK_SAVED_S = 5.0


async def run(settings: ServeSettings) -> Exit:
    """Serve until a signal comes."""
    async with opened(settings, say) as service:
        with signals(service.signalled), frozen_heap():
            service.greet()
            await service.ended()
    return Exit.INTERRUPTED if service.signal == signal.SIGINT else Exit.OK


@asynccontextmanager
async def opened(settings: ServeSettings, tell: Callable[[str], None]) -> AsyncIterator["Service"]:
    """A service that listens; leaving the context stops it and leaves nothing behind. `tell` gets lines for people."""
    rules = Rules(settings.bind, settings.allow_hosts, settings.origins, serve_key(settings.bind))
    with listening(settings.bind, settings.port) as sock, Store.open(database_path(settings.db)) as store:
        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(open_target(settings.choice, tell))
            num_ctx = target.num_ctx(settings.num_ctx)
            run = recorded(store, target, "serve", tag=settings.tag, num_ctx=num_ctx)
            run_id = await stack.enter_async_context(run)
            service = Service(settings, target, store, run_id, rules, sock, tell)
            try:
                yield service
            finally:
                service.stop()
                await service.ended()
                await service.ledger.settle()


def say(line: str) -> None:
    """One line for the person who started the server."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to `host` and `port` (0: a free one). UsageError where it cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere it would let two programs share the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host.strip("[]"), port))
            sock.listen(BACKLOG)
        except OSError as error:
            raise _not_bound(host, port, error) from None
        yield sock
    finally:
        sock.close()


def _not_bound(host: str, port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"port {port} of {host} is taken by another program", "Choose another with --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return UsageError(f"port {port} is not allowed to this user", "Choose one above 1023 with --port")
    return UsageError(f"cannot listen at {host}:{port} ({error.strerror or error})", "Choose another --bind or --port")


class Service:
    """The parts of one running server; it serves as soon as it is made."""

    def __init__(
        self,
        settings: ServeSettings,
        target: Target,
        store: Store,
        run_id: str,
        rules: Rules,
        sock: socket.socket,
        tell: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.target = target
        self.store = store
        self.gate = Gate(settings.max_parallel, settings.max_queue)
        self.attendance = Attendance()
        self.sessions = Sessions()
        self.metrics = Metrics(lambda: self.gate.running, lambda: self.gate.waiting, lambda: len(self.sessions))
        self.ledger = Ledger(target, store, run_id, self.metrics, keep_text=settings.keep_text)
        self.signal: int | None = None
        self.url = _url(settings.bind, sock.getsockname()[1])
        self._tell = tell
        self._stopping = False
        self._server = QuickServer(self._configured(rules), settings.grace_s + AFTER_GRACE_S)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        self._watching = asyncio.create_task(self._watch_store())

    def greet(self) -> None:
        """Say where it can be asked."""
        model = printable_line(self.target.model.name)
        self._tell(f"llmlab serves {model} of {self.target.server.shown} at {self.url} (Ctrl-C stops)")
        self._tell(f"  page            {self.url}/")
        self._tell(f"  Ollama clients  OLLAMA_HOST={self.url}")
        self._tell(f"  OpenAI clients  base_url={self.url}/v1")

    def signalled(self, number: int) -> None:
        """The first signal lets streams finish for a moment, the second does not."""
        if self.signal is None:
            self.signal = number
            self.stop()
        else:
            self._server.hurry()
            self.attendance.dismiss()

    def stop(self) -> None:
        """Take no more requests, and cut what has not finished after the time of grace."""
        if not self._stopping:
            self._stopping = True
            self._server.leave()
            asyncio.get_running_loop().call_later(self.settings.grace_s, self.attendance.dismiss)

    async def ended(self) -> None:
        """Wait until nothing is served any more."""
        try:
            await asyncio.shield(self._serving)
        finally:
            if self._serving.done():
                self._watching.cancel()

    def _configured(self, rules: Rules) -> uvicorn.Config:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        return uvicorn.Config(
            self._application(rules),
            http=connections(self.settings.head_timeout_s, self.settings.stall_timeout_s),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )

    def _application(self, rules: Rules) -> Guard:
        settings = self.settings
        chat = ChatEvents(self.ledger, self.gate, self.attendance, self.sessions, settings)
        fitting = Fitting(self.ledger, on=settings.budget is True, num_ctx=settings.num_ctx, reserve=settings.reserve)
        passage = Passage(self.target, self.attendance)
        proxy = Proxy(self.ledger, self.gate, self.attendance, fitting, passage)
        router = Router(chat, proxy, passage, build_pages(chat, self.metrics), self._tell)
        return Guard(router, rules, settings.max_body_bytes, settings.body_timeout_s)

    async def _watch_store(self) -> None:
        """Say it once when rows cannot be saved, and once when they can again."""
        failing = False
        while True:
            await asyncio.sleep(CHECK_SAVED_S)
            try:
                await self.store.saved()
                if failing:
                    self._tell("the database takes rows again; nothing was lost")
                failing = False
            except StoreError as error:
                if not failing:
                    self._tell(f"Error: {error}")
                failing = True


def _url(bind: str, port: int) -> str:
    host = "127.0.0.1" if bind in ("0.0.0.0", "::", "") else f"[{bind}]" if ":" in bind else bind
    return f"http://{host}:{port}"


@contextmanager
def signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` on the loop for Ctrl-C and SIGTERM, in place of whatever did it before."""
    loop = asyncio.get_running_loop()
    before: dict[int, object] = {}
    with suppress(ValueError):  # only the main thread may set signal handlers
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            before[number] = signal.signal(number, lambda n, _: loop.call_soon_threadsafe(stop, n))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
