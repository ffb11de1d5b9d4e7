"""The guard: only programs on this machine may ask, and no page of a foreign site through somebody's browser."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

Pairs = Iterable[tuple[bytes, bytes]]


def header(headers: Pairs, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def may_ask(headers: Pairs, own_host: str) -> bool:
    """Whether the Host header is one of this machine, and the Origin, where a browser sends one, is local too."""
    headers = list(headers)
    origin = header(headers, b"origin")
    return is_own(header(headers, b"host"), own_host) and (not origin or is_local_origin(origin))


def is_own(host: str, own_host: str) -> bool:
    """A name can be made to point here by anybody (DNS rebinding), an address cannot."""
    name = host_name(f"//{host}")
    return not host or name == own_host.lower() or is_local_name(name) or is_address(name)


def is_local_origin(origin: str) -> bool:
    name = host_name(origin)
    return is_local_name(name) or (is_address(name) and ipaddress.ip_address(name).is_loopback)


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
