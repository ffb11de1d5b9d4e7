"""The guard: no page of a foreign site may ask through somebody's browser."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from llmlab.settings import is_loopback

Pairs = Iterable[tuple[bytes, bytes]]


def header(headers: Pairs, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def may_ask(headers: Pairs, own_host: str) -> bool:
    """Whether the Host header is ours, and the Origin, where a browser sends one, is on this machine.

    `own_host` is what the engine was bound to.
    """
    headers = list(headers)
    origin = header(headers, b"origin")
    return is_own(header(headers, b"host"), own_host) and (not origin or is_local_origin(origin))


def is_own(host: str, own_host: str) -> bool:
    """A name can be made to point here by anybody (DNS rebinding), an address cannot.

    An engine that was bound to more than this machine is open to whatever names its network gives it, as Ollama is.
    """
    name = host_name(f"//{host}")
    return not host or is_local_name(name) or is_address(name) or not is_loopback(own_host)


def is_local_origin(origin: str) -> bool:
    return is_loopback(host_name(origin))


def is_local_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
