"""Which server and which files: what was said on the command line, else the environment, else the default."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from llmlab.errors import UsageError

APIS = ("auto", "ollama", "openai")
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 11434
SCHEME_PORTS = {"http": 80, "https": 443}

_PASTED = re.compile(r"/(api|v1)(/(chat|generate|tags|show|ps|version|chat/completions|completions|models))?$")
_BAD_HOST = re.compile(r"""[\s/\\?#@\[\]<>"'`{|}^%*,;:]""")
_DURATION = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_DURATION_S = 2**63 / 1e9


@dataclass(frozen=True, slots=True)
class Server:
    """Where the model server is and how to get there.

    `url` has no trailing slash, no user info, and a path only where the server lives under one. `source` says where
    the address came from: `--host`, `OLLAMA_HOST` or `default`. `key` is the bearer key, `user_info` (name, password)
    for basic authentication, `proxy` the proxy's URL with its own user info (None: direct). None of the three is ever
    printed: for people there are `shown` and `proxy_shown`.
    """

    url: str
    source: str = "default"
    api: str = "auto"
    key: str | None = field(default=None, repr=False)
    user_info: tuple[str, str] | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address for people: the password is `***`, and so is a name without one, for it may be a token."""
        if self.user_info is None:
            return self.url
        name, password = self.user_info
        return self.url.replace("://", f"://{quote(name, safe='')}:***@" if password else "://***@", 1)

    @property
    def proxy_shown(self) -> str | None:
        """The proxy for people, without its user info."""
        if self.proxy is None:
            return None
        scheme, _, rest = self.proxy.partition("://")
        user, at, place = rest.rpartition("@")
        return f"{scheme}://***@{place}" if at or user else self.proxy


def find_server(host: str | None = None, api: str = "auto", env: Mapping[str, str] = os.environ) -> Server:
    """The server that `host`, else OLLAMA_HOST, else the default names. Raises UsageError, which never shows a secret.

    Every form that Ollama takes is taken: with or without scheme and port, IPv6 with or without brackets, quotes and
    spaces around it. An address to bind to becomes the address to connect to. A pasted `/api` or `/v1` is removed; it
    says nothing about the API, because Ollama serves both, so `api` stays `auto` and the server is asked.
    """
    if api not in APIS:
        raise UsageError(f"unknown API {api!r}", f"Choose one of {', '.join(APIS)}")
    source, said = "default", ""
    for name, value in (("OLLAMA_HOST", env.get("OLLAMA_HOST")), ("--host", host)):
        if value is not None and _unquoted(value):
            source, said = name, _unquoted(value)
    url, name, user_info = _parse(said, source)
    return Server(url, source, api, _key(env), user_info, _proxy(url, name, env))


def _unquoted(text: str) -> str:
    """Without the spaces and quotes that .env files leave around a value."""
    return text.strip(" \t\r\n\"'")


def _key(env: Mapping[str, str]) -> str | None:
    key = _unquoted(env.get("LLMLAB_API_KEY", ""))
    if key and not re.fullmatch(r"[!-~]+", key):
        raise UsageError("LLMLAB_API_KEY holds characters that cannot be sent", "Use printable ASCII without spaces")
    return key or None


# The address


def _parse(text: str, source: str) -> tuple[str, str, tuple[str, str] | None]:
    """URL without user info, host name or address, user info."""
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        scheme, rest = ("https", "ollama.com:443") if text == "ollama.com" else ("http", text)
    elif scheme not in SCHEME_PORTS:
        named = f"the scheme {scheme}://" if re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) else "no known scheme"
        raise UsageError(f"{source} has {named}", "Use http:// or https://")
    if any(not c.isprintable() for c in rest) or "?" in rest or "#" in rest:
        raise UsageError(f"{source} is not an address", "Give host:port or http://host:port/path, without ? and #")
    authority, slash, path = rest.partition("/")
    user, at, place = authority.rpartition("@")
    if "@" in path:
        raise UsageError(f"{source} has an @ after the first /", "Write special characters of a password as %2F, %40 …")
    name, port_text = _split_port(place.strip(), source)
    port = _port(port_text, source) if port_text else (SCHEME_PORTS[scheme] if separator else DEFAULT_PORT)
    name = _connectable(name, source)
    host = f"[{name}]" if ":" in name else name
    secret_name, _, password = user.partition(":")
    user_info = (unquote(secret_name), unquote(password)) if at and user else None
    return f"{scheme}://{host}:{port}{_path(slash + path)}", name, user_info


def _split_port(place: str, source: str) -> tuple[str, str]:
    """Host and port of `h`, `h:1`, `::1`, `[::1]`, `[::1]:1`, `fe80::1%eth0`, `:1`; the port may be empty."""
    if place.startswith("["):
        name, bracket, port = place[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise UsageError(f"{source} has an unfinished [address]", "Write IPv6 with a port as [::1]:11434")
        return name, port[1:]
    if place.count(":") > 1:
        return place, ""
    name, _, port = place.partition(":")
    if name.lower() in SCHEME_PORTS and not port:
        raise UsageError(f"{source} has a scheme without //", f"Write {name.lower()}://host:port")
    return name, port


def _port(text: str, source: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise UsageError(f"{source} has the port {text!r}", "A port is a number from 1 to 65535")
    return int(text)


def _connectable(name: str, source: str) -> str:
    """The host to connect to: addresses to bind to become loopback; what can be no host is a UsageError."""
    address, percent, zone = name.partition("%")
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        pass
    else:
        if ip.is_unspecified:
            return "127.0.0.1" if ip.version == 4 else "::1"
        zone = zone.removeprefix("25") if percent else ""
        if percent and (ip.version == 4 or not re.fullmatch(r"[A-Za-z0-9._~-]+", zone)):
            raise UsageError(f"{source} has a bad IPv6 zone", "Write it as fe80::1%eth0")
        return f"{ip}%{zone}" if percent else str(ip)
    if not name:
        return DEFAULT_HOST
    if _BAD_HOST.search(name) or not _is_name(name):
        raise UsageError(f"{source} names no host", "Give host:port, [IPv6]:port or http://host:port")
    return name.lower()


def _is_name(name: str) -> bool:
    if name.isascii():
        return all(0 < len(label) < 64 for label in name.removesuffix(".").split("."))
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def _path(path: str) -> str:
    """The prefix the server lives under: no trailing slash, and not the API's own path that was pasted along."""
    return _PASTED.sub("", path.rstrip("/")).rstrip("/")


def is_loopback(name: str) -> bool:
    """Whether a host, name or address, is this machine: 127.0.0.0/8, ::1, localhost and its sub-domains."""
    try:
        ip = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        bare = name.lower().rstrip(".")
        return bare == "localhost" or bare.endswith(".localhost")
    return ip.is_loopback or bool(ip.version == 6 and ip.ipv4_mapped and ip.ipv4_mapped.is_loopback)


# The proxy


def _proxy(url: str, name: str, env: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for `url`; loopback is always reached directly."""
    if is_loopback(name):
        return None
    proxies = _proxies(env)
    scheme = url.partition(":")[0]
    variable = scheme if scheme in proxies else "all"
    if variable not in proxies or _bypassed(url, name, proxies):
        return None
    proxy = proxies[variable] if "://" in proxies[variable] else f"http://{proxies[variable]}"
    if not _is_proxy(proxy):
        raise UsageError(
            f"{variable.upper()}_PROXY names no http:// or https:// proxy", f"Correct it, or name {name} in NO_PROXY"
        )
    return proxy


def _is_proxy(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in SCHEME_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _proxies(env: Mapping[str, str]) -> dict[str, str]:
    """`http`, `https`, `all`, `no` of the *_proxy variables; small letters win, as everywhere.

    In a CGI program HTTP_PROXY is what a client sent in a header, and is not believed.
    """
    proxies: dict[str, str] = {}
    for kind in ("http", "https", "all", "no"):
        upper = "" if kind == "http" and "REQUEST_METHOD" in env else env.get(f"{kind.upper()}_PROXY", "")
        if value := env.get(f"{kind}_proxy", upper).strip():
            proxies[kind] = value
    return proxies


def _bypassed(url: str, name: str, proxies: Mapping[str, str]) -> bool:
    """Whether NO_PROXY names the host: by name, domain, `*`, address, or network such as 10.0.0.0/8."""
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # takes long to import

    if "no" not in proxies:
        return False
    entries = [e.strip().removeprefix("*.") if e.strip() != "*" else "*" for e in proxies["no"].split(",")]
    if "*" in entries or proxy_bypass_environment(urlsplit(url).netloc, {"no": ",".join(entries)}):
        return True
    try:
        ip = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return any(ip in network for network in map(_network, entries) if network is not None)


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


# Files


def database_path(db: Path | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """The results database: `--db`, else LLMLAB_DB, else `llmlab.db` in the user data folder."""
    if db is None and _unquoted(env.get("LLMLAB_DB", "")):
        db = Path(_unquoted(env["LLMLAB_DB"]))
    return data_folder(env) / "llmlab.db" if db is None else _expanded(db)


def data_folder(env: Mapping[str, str] = os.environ) -> Path:
    """The user data folder of this platform; XDG_DATA_HOME is respected. It need not exist."""
    from platformdirs import user_data_path

    return _xdg(env.get("XDG_DATA_HOME")) or user_data_path("llmlab", appauthor=False)


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """The user cache folder of this platform; XDG_CACHE_HOME is respected. It need not exist."""
    from platformdirs import user_cache_path

    return _xdg(env.get("XDG_CACHE_HOME")) or user_cache_path("llmlab", appauthor=False)


def _xdg(folder: str | None) -> Path | None:
    """The specification has relative paths ignored."""
    return Path(folder) / "llmlab" if folder and Path(folder).is_absolute() else None


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except (RuntimeError, ValueError):  # nobody of that name, or no name at all
        raise UsageError(f"no home folder for {path}", "Give the full path") from None


# keep_alive


def parse_keep_alive(text: str | None) -> int | str | None:
    """How long the model stays loaded, as Ollama takes it: bare seconds as a number, else a duration such as `1h30m`.

    Negative means for ever, 0 at once, None that the server decides (the key is left out). Raises UsageError.
    """
    if text is None or not (value := _unquoted(text)):
        return None
    if re.fullmatch(r"[+-]?[0-9]+", value) and len(value) < 20 and abs(int(value)) < _MAX_DURATION_S:
        return int(value)
    if _DURATION.fullmatch(value):
        seconds = sum(float(n) * _UNIT_S[unit] for n, unit in _DURATION_PART.findall(value))
        if seconds < _MAX_DURATION_S:
            return value
    raise UsageError(f"keep_alive {value!r} is not a duration", "Use seconds (300, 0, -1) or 5m, 1h30m")
