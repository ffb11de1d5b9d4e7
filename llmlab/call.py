"""Call: the record of one request to a model and its answer; one field per column of the table `calls`."""

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from ulid import ULID

OUTCOMES = ("ok", "error", "timeout", "cancelled", "incomplete")
PURPOSES = ("answer", "measured", "warmup", "anchor", "probe", "summary")
CACHE_STATES = ("cold", "warm", "unknown")
CUTS = ("no", "suspected", "proved")


def new_id() -> str:
    """A fresh ULID; people see and type its last six characters."""
    return str(ULID())


def utc_now() -> str:
    """The calendar, as ISO 8601 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What the caller knows of a call before it is made; the rest of a `Call` is measured.

    `cache_state` is set by who built the prompt.
    """

    run_id: str | None = None
    seq: int | None = None
    model_id: str | None = None
    purpose: str = "answer"
    experiment: str | None = None
    variant: str | None = None
    size: int | None = None
    repeat: int | None = None
    user: int | None = None
    prompt_tokens_estimate: int | None = None
    messages_pinned: int | None = None
    messages_dropped: int | None = None
    cache_state: str = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Label):
    """One request and its answer: its label, and what was measured.

    Durations are nanoseconds of a monotonic clock; counts are tokens as the server counts them; None means not
    reported, which is not zero. Column by column:

    - `num_ctx` asked for (None on the OpenAI wire), `num_ctx_loaded` what the server really loaded where known;
    - `prompt_chars` characters of all messages sent; `prompt_tokens_estimate` our uncalibrated estimate of them;
    - `prompt_tokens` Ollama `prompt_eval_count`, OpenAI `usage.prompt_tokens`: the whole prompt, template included;
    - `cached_tokens` `prompt_eval_cached_count`, `usage.prompt_tokens_details.cached_tokens`, `timings.cache_n`;
    - `output_tokens` `eval_count`, `usage.completion_tokens`; `pieces` non-empty stream pieces, never a token count;
    - `connect_ns` opening the connection (None: reused); `ttft_ns` request bytes written → first non-empty thinking or
      content piece (or tool call) arrives; `ttft_answer_ns` the same up to the first content piece;
      `last_piece_ns` up to the last piece; `stall_max_ns` the longest gap between two pieces; `total_ns` up to the end;
    - `server_total_ns`, `load_ns`, `prefill_ns`, `decode_ns` the server's own durations (`total_duration`,
      `load_duration`, `prompt_eval_duration`, `eval_duration`; llama-server `timings`);
    - `prefill_source` `server`, or `client` where `prefill_ns` is TTFT − load because the server timed only a part;
    - `in_flight` our other calls that overlapped this one at its start;
    - `cut` no, suspected, proved or None, with `cut_evidence` in words;
    - `timing_source` what stamped the bytes: `socket` (at arrival) or `reader` (when the coroutine read them);
    - `http_status`, `error` one line; `done_reason` the server's word, or `window_full`;
    - `flags` words separated by commas; `prompt_hash` sha256 of the messages sent, first 16 hex digits.
    """

    id: str = field(default_factory=new_id)
    num_ctx: int | None = None
    num_ctx_loaded: int | None = None
    started_utc: str = field(default_factory=utc_now)
    prompt_chars: int | None = None
    messages_sent: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    pieces: int = 0
    connect_ns: int | None = None
    ttft_ns: int | None = None
    ttft_answer_ns: int | None = None
    last_piece_ns: int | None = None
    stall_max_ns: int | None = None
    total_ns: int | None = None
    server_total_ns: int | None = None
    load_ns: int | None = None
    prefill_ns: int | None = None
    prefill_source: str | None = None
    decode_ns: int | None = None
    in_flight: int | None = None
    cut: str | None = None
    cut_evidence: str | None = None
    recalled: bool | None = None
    outcome: str = "ok"
    done_reason: str | None = None
    http_status: int | None = None
    error: str | None = None
    timing_source: str | None = None
    flags: str | None = None
    prompt_hash: str | None = None

    def row(self) -> dict[str, Any]:
        """The call as a row of `calls`."""
        return asdict(self)

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """(prompt − cached) tokens ÷ prefill time; None unless the call is known to be cold or the cached count is."""
        if not self.prompt_tokens or not self.prefill_ns or self.prefill_ns <= 0:
            return None
        if self.cached_tokens is None and self.cache_state != "cold":
            return None
        fresh = self.prompt_tokens - (self.cached_tokens or 0)
        return fresh / self.prefill_ns * 1e9 if fresh > 0 else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Output tokens ÷ the server's decode time, as Ollama prints it; None under 8 tokens or 50 ms."""
        if not self.output_tokens or self.output_tokens < 8 or not self.decode_ns or self.decode_ns < 50_000_000:
            return None
        return self.output_tokens / self.decode_ns * 1e9

    @property
    def user_tokens_per_s(self) -> float | None:
        """(output tokens − 1) ÷ (last piece − first piece), as the user sees it; None under 8 tokens or 50 ms."""
        if not self.output_tokens or self.output_tokens < 8 or self.last_piece_ns is None or self.ttft_ns is None:
            return None
        span_ns = self.last_piece_ns - self.ttft_ns
        return (self.output_tokens - 1) / span_ns * 1e9 if span_ns >= 50_000_000 else None

    @property
    def unexplained_ns(self) -> int | None:
        """TTFT − load − prefill: waiting the server does not explain. None where a part is not reported."""
        if self.ttft_ns is None or self.prefill_ns is None:
            return None
        return max(0, self.ttft_ns - (self.load_ns or 0) - self.prefill_ns)


def has_flag(call: Call, flag: str) -> bool:
    return flag in (call.flags or "").split(",")


def add_flag(flags: str | None, flag: str) -> str:
    """`flags` with `flag` added once, sorted."""
    return ",".join(sorted({*filter(None, (flags or "").split(",")), flag}))
