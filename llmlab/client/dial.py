"""Opening a TCP connection: every address of a name gets its chance, and a dead one costs next to nothing."""

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any

Address = tuple[socket.AddressFamily, Any]

STAGGER_S = 0.25
STAGGER_LOOPBACK_S = 0.02


async def dial(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket; OSError where no address of `host` answers."""
    addresses = await resolve(host, port)
    if len(addresses) == 1:
        return await connect(addresses[0])
    return await race(addresses, STAGGER_LOOPBACK_S if all(map(is_loopback, addresses)) else STAGGER_S)


async def resolve(host: str, port: int) -> list[Address]:
    """The addresses of `host`, best first; those of `localhost` with IPv4 first, where local servers listen."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses: list[Address] = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
        if all(map(is_loopback, addresses)):
            addresses.sort(key=lambda a: a[0] != socket.AF_INET)
        return addresses
    return [(socket.AF_INET, (host, port)) if ip.version == 4 else (socket.AF_INET6, (host, port, 0, 0))]


def is_loopback(address: Address) -> bool:
    return ipaddress.ip_address(address[1][0].partition("%")[0]).is_loopback


async def connect(address: Address) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


async def race(addresses: Sequence[Address], stagger_s: float) -> socket.socket:
    """The first connection of a staggered race (RFC 8305): the next address starts when one failed or is slow."""
    errors: list[BaseException] = []
    running: set[asyncio.Task[socket.socket]] = set()
    waiting = list(addresses)
    winner: socket.socket | None = None
    try:
        while winner is None and (waiting or running):
            if waiting:
                running.add(asyncio.ensure_future(connect(waiting.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is not None:
                    errors.append(error)
                elif winner is None:
                    winner = task.result()
                else:
                    task.result().close()
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(close_late)
    if winner is None:
        raise errors[0] if errors else OSError("no address to connect to")
    return winner


def cause(error: Exception) -> str:
    """What went wrong, in the operating system's words, without numbers and addresses."""
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "verify_message", None) or error.reason or error)
    if isinstance(error, socket.gaierror):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno and not getattr(error, "winerror", None):
        return os.strerror(error.errno)
    return str(error)


def close_late(task: "asyncio.Task[socket.socket]") -> None:
    """A loser that got through before its cancellation must not stay open."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
