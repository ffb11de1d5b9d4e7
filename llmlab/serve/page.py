"""The page: static files out of the package, with headers that let them do nothing but talk to this server."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page; `etag` changes with its content."""

    body: bytes
    content_type: str
    etag: str

    @property
    def headers(self) -> dict[str, str]:
        return {
            "content-type": self.content_type,
            "etag": self.etag,
            "cache-control": "no-cache",
            "content-security-policy": POLICY,
            "cross-origin-resource-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
        }


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file of the page by its name."""
    found = {}
    for path in files("llmlab.serve").joinpath("static").iterdir():
        kind = TYPES.get(path.name.rpartition(".")[2])
        if kind is not None:
            body = path.read_bytes()
            found[path.name] = StaticFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
