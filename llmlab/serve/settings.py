"""What the command line asks of a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmlab.target import Choice

DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Where to listen, what to answer with, and who may ask.

    `num_ctx` None: 4,096, or what an OpenAI-compatible server says. `budget` None: conversations of /chat are kept
    inside the window and other clients' are left alone; True fits those too, False lets everything overflow.
    `allow_hosts` are further Host names and `origins` further web origins that may ask. At most `max_parallel` calls
    run at once and `max_queue` wait, the next is answered 503; a request's body has at most `max_body_bytes`. Streams
    get `grace_s` seconds to finish when the server stops. `idle_s` is the silence after which a stream gets a comment;
    `head_timeout_s` and `body_timeout_s` are how long a request's head and body may take to come, and `stall_timeout_s`
    how long a client may leave its answer unread.
    """

    choice: Choice
    bind: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    db: Path | None = None
    tag: str | None = None
    system: str | None = None
    num_ctx: int | None = None
    num_predict: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    think: bool | None = None
    keep_alive: int | str | None = None
    keep_text: bool = False
    budget: bool | None = None
    on_overflow: str = "drop"
    reserve: int | None = None
    allow_hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_parallel: int = 512
    max_queue: int = 512
    max_body_bytes: int = 8 * 1024 * 1024
    grace_s: float = 2.0
    idle_s: float = 10.0
    head_timeout_s: float = 20.0
    body_timeout_s: float = 30.0
    stall_timeout_s: float = 60.0
