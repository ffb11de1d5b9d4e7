"""Browse: Datasette on the database, read-only and on loopback, with llmlab's pages."""

import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from llmlab.errors import StoreError, UsageError
from llmlab.store.connection import connect, database_uri, readable

if TYPE_CHECKING:
    from datasette.app import Datasette

HOST = "127.0.0.1"
PORT = 8001
SETTINGS = {"sql_time_limit_ms": 10_000, "suggest_facets": False, "default_cache_ttl": 0, "allow_download": False}
"""A question to a million calls may take seconds; looking for facets to suggest takes six; no page is ever stale."""


def browse(path: Path, *, port: int | None = None, open_browser: bool = True, stream: TextIO | None = None) -> None:
    """Serve the pages of the database at `path` until Ctrl-C, telling `stream` (standard error) the address.

    `port` None is 8001, or a free one where that is taken. The file is never written. One that is being written is read
    as it stands at every page; one of an older llmlab, or with rows in a -wal file that cannot be read in its place, as
    a copy of this moment. Raises StoreError where there is no such database, UsageError where `port` is taken.
    """
    stream = stream or sys.stderr
    if not path.exists():
        raise StoreError(f"there is no database {path} yet", "Measure something first: llmlab bench --tag laptop")
    with _listener(port) as listener, readable(path) as uri, _datasette(path, uri) as datasette:
        from llmlab.datasette_plugin.links import runs_link

        address = f"http://{HOST}:{listener.getsockname()[1]}{runs_link(datasette, path.stem)}"
        copied = "" if uri.startswith(database_uri(path, "")) else " (a copy of this moment)"

        def ready() -> None:
            print(f"{path}{copied}: {address} - Ctrl-C ends it", file=stream, flush=True)
            if open_browser:
                import webbrowser

                # Some browsers hold the call until they are closed.
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        with suppress(KeyboardInterrupt):
            _serve(datasette, listener, ready)


@contextmanager
def _listener(port: int | None) -> Iterator[socket.socket]:
    """A socket that listens on loopback only."""
    for wanted in (PORT, 0) if port is None else (port,):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if os.name != "nt":  # there it would let two programs share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, wanted))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if wanted and port is None:
                continue
            raise UsageError(f"port {wanted} on {HOST}: {error.strerror or error}", "Choose another --port") from None
        with listener:
            yield listener
        return


@contextmanager
def _datasette(path: Path, uri: str) -> Iterator["Datasette"]:
    """Datasette on nothing but the database at `uri`, named as the file at `path`."""
    import rich
    from datasette.app import Datasette
    from datasette.database import Database

    # Datasette prints a traceback for every address that leads nowhere, where it finds rich.
    rich.reconfigure(quiet=True)
    opened: list[sqlite3.Connection] = []

    class File(Database):  # type: ignore[misc]
        """Datasette puts paths into addresses as they are, and knows of no copies: `uri` is what is opened, to read."""

        def connect(self, write: bool = False) -> sqlite3.Connection:
            if write:
                raise StoreError(f"the database {path} is open for reading")
            opened.append(connect(uri, any_thread=True))
            opened[-1].execute("PRAGMA query_only = ON")
            return opened[-1]

    datasette: Any = Datasette(settings=SETTINGS)
    datasette.remove_database("_memory")
    datasette.add_database(File(datasette, str(path)), name=path.stem)
    try:
        yield datasette
    finally:
        datasette.executor.shutdown()
        for connection in opened:
            connection.close()


def _serve(datasette: "Datasette", listener: socket.socket, ready: Any) -> None:
    """Serve until a signal ends it; `ready` is called when requests are answered."""
    import uvicorn
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    # A page elsewhere could point a name of its own at this address and read along.
    app = TrustedHostMiddleware(datasette.app(), allowed_hosts=[HOST, "localhost"])
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=2)
    Server(config).run(sockets=[listener])
