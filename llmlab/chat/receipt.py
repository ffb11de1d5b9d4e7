"""The receipt: where the time of the last answer went."""

from llmlab.call import Call
from llmlab.conversation import Answer
from llmlab.figures import format_count, format_seconds, format_speed


def receipt(answer: Answer) -> list[str]:
    """The parts of the wait and of the answer, one aligned line each; what the server does not report is `–`."""
    call = answer.call
    rows = [
        ("connect", "reused" if call.connect_ns is None else _seconds(call.connect_ns)),
        ("load", _seconds(call.load_ns)),
        ("prefill", _prefill(call)),
        ("cached", "–" if call.cached_tokens is None else f"{call.cached_tokens:,} tokens"),
        (_wait_name(call), _seconds(call.unexplained_ns)),
        ("first token", _seconds(call.ttft_ns)),
        ("decode", _decode(call)),
        ("longest stall", _seconds(call.stall_max_ns)),
        ("total", _seconds(call.total_ns)),
    ]
    if answer.fit is not None:
        rows.append(("window", f"about {answer.fit.used:,} of {answer.fit.limit:,} tokens before the answer"))
        rows.append(("dropped", f"{len(answer.fit.dropped)} messages"))
    rows.append(("ended", call.done_reason or "unknown"))
    if call.cut and call.cut != "no":
        rows.append(("cut", f"{call.cut}: {call.cut_evidence}"))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def _wait_name(call: Call) -> str:
    """Waiting is called a queue only where our own calls overlapped."""
    return "queue" if call.in_flight else "unexplained wait"


def _prefill(call: Call) -> str:
    if call.prefill_ns is None:
        return "–"
    speed = call.prefill_tokens_per_s
    rate = "speed n/a: cached count unknown" if speed is None else format_speed(speed)
    source = ", by our clock: the server timed only a part" if call.prefill_source == "client" else ""
    return f"{_seconds(call.prefill_ns)}  ({rate}{source})"


def _decode(call: Call) -> str:
    speed = format_speed(call.decode_tokens_per_s)
    return f"{_seconds(call.decode_ns)}  ({format_count(call.output_tokens)} tokens, {speed})"


def _seconds(ns: int | None) -> str:
    return format_seconds(None if ns is None else ns / 1e9)
