"""Opening a connection: every address of a name gets its chance, and a dead one costs next to nothing."""

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from llmlab.settings import is_loopback

T = TypeVar("T")

STAGGER_S = 0.25
STAGGER_LOOPBACK_S = 0.02


async def dial(host: str, port: int, connect: Callable[[str], Awaitable[T]], drop: Callable[[T], None]) -> T:
    """What `connect` makes of the first address of `host` that answers; OSError where none does.

    `connect` takes an address in numbers; `drop` gets the connections that came too late.
    """
    addresses = await resolve(host, port)
    if len(addresses) == 1:
        return await connect(addresses[0])
    stagger_s = STAGGER_LOOPBACK_S if all(map(is_loopback, addresses)) else STAGGER_S
    return await race(addresses, stagger_s, connect, drop)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of `host`, best first; those of `localhost` with IPv4 first, where local servers listen."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        return sorted(addresses, key=lambda a: ":" in a) if all(map(is_loopback, addresses)) else addresses
    return [host]


async def race(
    addresses: Sequence[str], stagger_s: float, connect: Callable[[str], Awaitable[T]], drop: Callable[[T], None]
) -> T:
    """The first connection of a staggered race (RFC 8305): the next address starts when one failed or is slow."""
    errors: list[BaseException] = []
    running: set[asyncio.Future[T]] = set()
    waiting = list(addresses)
    won: list[T] = []
    try:
        while not won and (waiting or running):
            if waiting:
                running.add(asyncio.ensure_future(connect(waiting.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            errors += [error for error in (task.exception() for task in done) if error is not None]
            won += [task.result() for task in done if task.exception() is None]
    finally:

        def drop_late(task: "asyncio.Future[T]") -> None:
            if not task.cancelled() and task.exception() is None:
                drop(task.result())

        for task in running:
            task.cancel()
            task.add_done_callback(drop_late)
        for loser in won[1:]:
            drop(loser)
    if not won:
        raise errors[0]
    return won[0]


def cause(error: Exception) -> str:
    """What went wrong, in the operating system's words, without numbers and addresses."""
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "verify_message", None) or error.reason or error)
    if isinstance(error, socket.gaierror):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno and not getattr(error, "winerror", None):
        return os.strerror(error.errno)
    return str(error)
