"""The two runs of the lesson as rows, and other runs built from the figures they are to have."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from llmlab.call import Call
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.report.side import Side
from llmlab.run import Run
from llmlab.store import Store

SECOND = 1_000_000_000
PROMPT_TOKENS = (130, 925, 2745)


def lesson_calls(number: int) -> list[Call]:
    """Run 1 or 2 of the lesson: one call per cell, one burst per number of users."""
    return [*prompt_calls(*LESSON[number]["prompt"]), *again_calls(*LESSON[number]["again"]), *lesson_bursts(number)]


def lesson_run(number: int, **columns: object) -> Run:
    tag = "first" if number == 1 else "second"
    return Run(**{"command": "bench", "tag": tag, "bench_version": 1, "machine_id": tag, "outcome": "ok", **columns})  # type: ignore[arg-type]


def prompt_calls(ttft_s: Sequence[float], prefill: Sequence[float], decode: Sequence[float]) -> list[Call]:
    return [
        prompt_call(size, *values)
        for size, *values in zip((100, 1000, 3000), PROMPT_TOKENS, ttft_s, prefill, decode, strict=True)
    ]


def prompt_call(size: int, tokens: int, ttft_s: float, prefill: float, decode: float, **columns: object) -> Call:
    """A cold call of `tokens` prompt tokens, with both speeds in tokens/s and 64 tokens of answer."""
    ttft_ns = int(ttft_s * SECOND)
    fields = {
        "purpose": "measured",
        "experiment": "prompt_length",
        "size": size,
        "repeat": 1,
        "cache_state": "cold",
        "prompt_tokens": tokens,
        "prefill_ns": int(tokens / prefill * SECOND),
        "prefill_source": "server",
        "output_tokens": 64,
        "decode_ns": int(64 / decode * SECOND),
        "ttft_ns": ttft_ns,
        "ttft_answer_ns": ttft_ns,
        "last_piece_ns": ttft_ns + int(63 / decode * SECOND),
        "load_ns": 0,
    }
    return Call(**{**fields, **columns})  # type: ignore[arg-type]


def again_calls(first_s: float, again_s: float) -> list[Call]:
    return [repeat_call("first", first_s), repeat_call("again", again_s, cache_state="warm", prefill_ns=None)]


def repeat_call(variant: str, ttft_s: float, **columns: object) -> Call:
    return prompt_call(3000, 2745, ttft_s, 2745 / ttft_s, 5.0, experiment="repeat_prompt", variant=variant, **columns)


def lesson_bursts(number: int) -> list[Call]:
    figures = zip((1, 2, 4, 8), LESSON[number]["median"], LESSON[number]["total"], strict=True)
    return [call for users, ttft_s, total in figures for call in burst(users, ttft_s, total)]


def burst(
    users: int, ttft_s: float, total: float, *, tokens: int = 130, repeat: int = 1, **columns: object
) -> list[Call]:
    """A burst whose median TTFT and total speed are as given; the waits step evenly around the median."""
    end_ns = int(users * tokens / total * SECOND)
    spread = [1.0] if users == 1 else [0.5 + user / (users - 1) for user in range(users)]
    fields = {
        "purpose": "measured",
        "experiment": "users",
        "size": users,
        "repeat": repeat,
        "cache_state": "cold",
        "prompt_tokens": 40,
        "output_tokens": tokens,
        "last_piece_ns": end_ns,
    }
    waits_ns = [min(int(ttft_s * SECOND * share), end_ns * 9 // 10) for share in spread]
    return [
        Call(**{**fields, "user": user, "ttft_ns": wait_ns, **columns})  # type: ignore[arg-type]
        for user, wait_ns in enumerate(waits_ns, start=1)
    ]


def anchors(ttft_s: Sequence[float], decode: float = 20.0) -> list[Call]:
    return [prompt_call(256, 256, wait_s, 100, decode, purpose="anchor", experiment=None) for wait_s in ttft_s]


LESSON: dict[int, dict[str, Sequence]] = {  # type: ignore[type-arg]
    1: {
        "prompt": ((7, 60, 194), (19, 15, 14), (8.6, 7.5, 5.7)),
        "again": (194.5, 0.2),
        "median": (2.4, 4.1, 8.0, 21.5),
        "total": (7.0, 7.3, 7.8, 7.6),
    },
    2: {
        "prompt": ((5, 39, 127), (28, 24, 22), (4.3, 4.0, 3.3)),
        "again": (126.9, 0.3),
        "median": (1.8, 2.9, 5.8, 22.2),
        "total": (3.9, 4.5, 7.5, 8.1),
    },
}


def overflow_call(turns: int, variant: str, recalled: bool | None, **columns: object) -> Call:
    """The question for the code word after `turns` long turns, at a window of 1,024 tokens."""
    fields = {
        "purpose": "measured",
        "experiment": "overflow",
        "variant": variant,
        "size": turns,
        "repeat": 1,
        "num_ctx": 1024,
        "num_ctx_loaded": 1024,
        "prompt_tokens": 110 * turns + 60,
        "output_tokens": 12,
        "cut": "no",
        "prompt_tokens_estimate": 115 * turns + 60,
        "ttft_ns": SECOND,
        "recalled": recalled,
    }
    return Call(**{**fields, **columns})  # type: ignore[arg-type]


def keep(
    path: Path, run: Run, calls: Iterable[Call], model: Model | None = None, machine: Machine | None = None
) -> Run:
    """Write a run with its calls into the database at `path`."""
    machine = machine or Machine(id=run.machine_id or "one", os="Linux", cpu="Testing CPU", cores_physical=2)
    run = replace(run, machine_id=machine.id, model_id=model.id if model else None)
    with Store.open(path) as store:
        store.save_machine(machine)
        if model:
            store.save_model(model)
        store.start_run(run)
        for seq, call in enumerate(calls):
            store.add(replace(call, run_id=run.id, seq=seq))
    return run


def side(calls: Iterable[Call], label: str = "a", model: Model | None = None, **columns: object) -> Side:
    """A side of a report that was never in a database."""
    fields = {"command": "bench", "tag": label, "bench_version": 1, "machine_id": "one", "outcome": "ok", **columns}
    return Side(run=Run(**fields), calls=list(calls), model=model, machine=None, label=label)  # type: ignore[arg-type]
