"""Metrics: what Prometheus reads at /metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from llmlab import __version__
from llmlab.call import Call

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
TOKENS_PER_S = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500)


class Metrics:
    """Counters of one server, in a registry of their own.

    `route` is one of the served paths; no label holds a text that a client can choose.
    """

    def __init__(self, running: Callable[[], int], waiting: Callable[[], int], sessions: Callable[[], int]) -> None:
        registry = self._registry = CollectorRegistry()
        Info("llmlab", "The llmlab that answers.", registry=registry).info({"version": __version__})
        self._calls = Counter("llmlab_calls", "Calls, by outcome.", ["route", "outcome"], registry=registry)
        self._refused = Counter("llmlab_refused", "Requests sent away with 503.", ["route"], registry=registry)
        self._prompt = Counter("llmlab_prompt_tokens", "Prompt tokens, by the server's count.", registry=registry)
        self._cached = Counter("llmlab_cached_tokens", "Prompt tokens that came from a cache.", registry=registry)
        self._output = Counter("llmlab_output_tokens", "Output tokens, by the server's count.", registry=registry)
        self._dropped = Counter("llmlab_dropped_messages", "Messages left out by the budget.", registry=registry)
        self._cut = Counter("llmlab_cut_calls", "Calls whose prompt the server cut.", ["verdict"], registry=registry)
        self._ttft = Histogram(
            "llmlab_ttft_seconds", "Time to first token.", ["route"], buckets=SECONDS, registry=registry
        )
        self._total = Histogram(
            "llmlab_call_seconds", "Time of whole calls.", ["route"], buckets=SECONDS, registry=registry
        )
        self._decode = Histogram(
            "llmlab_decode_tokens_per_second",
            "Decode speed by the server's own time.",
            buckets=TOKENS_PER_S,
            registry=registry,
        )
        for name, text, read in (
            ("llmlab_calls_running", "Calls under way.", running),
            ("llmlab_calls_waiting", "Calls that wait for a place.", waiting),
            ("llmlab_sessions", "Conversations remembered.", sessions),
        ):
            Gauge(name, text, registry=registry).set_function(read)

    def refused(self, route: str) -> None:
        """A request was sent away because too many were there."""
        self._refused.labels(route).inc()

    def count(self, route: str, call: Call) -> None:
        """A call has ended."""
        self._calls.labels(route, call.outcome).inc()
        for counter, value in (
            (self._prompt, call.prompt_tokens),
            (self._cached, call.cached_tokens),
            (self._output, call.output_tokens),
            (self._dropped, call.messages_dropped),
        ):
            if value:
                counter.inc(value)
        if call.ttft_ns is not None:
            self._ttft.labels(route).observe(call.ttft_ns / 1e9)
        if call.total_ns is not None:
            self._total.labels(route).observe(call.total_ns / 1e9)
        if call.decode_tokens_per_s is not None:
            self._decode.observe(call.decode_tokens_per_s)

    def cut(self, call: Call) -> None:
        """The verdict on a call's prompt is known."""
        if call.cut in ("suspected", "proved"):
            self._cut.labels(call.cut).inc()

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)
