"""The views: rates by the same definitions as the properties of a call, medians of cells and runs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import pytest

from llmlab.call import Call
from llmlab.cells import cells as python_cells
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store

MS = 1_000_000


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with Store.open(tmp_path / "lab.db") as opened:
        yield opened


def saved(store: Store, *calls: Call, **columns: Any) -> Run:
    run = Run(command="bench", **columns)
    store.start_run(run)
    for call in calls:
        store.add(replace(call, run_id=run.id))
    store.flush()
    return run


def measured(experiment: str = "prompt_length", size: int = 100, **columns: Any) -> Call:
    return Call(purpose="measured", experiment=experiment, size=size, **columns)


def cells(store: Store, run: Run) -> dict[Any, dict[str, Any]]:
    """The cells of a run by (variant, size)."""
    return {(c["variant"], c["size"]): c for c in store.db.query("SELECT * FROM cells WHERE run_id = ?", [run.id])}


RATES = {
    "prefill_tokens_per_s": [
        Call(prompt_tokens=prompt, cached_tokens=cached, prefill_ns=prefill, cache_state=state)
        for prompt, cached, prefill, state in product(
            (None, 0, 1, 100), (None, 0, 50, 100, 101), (None, 0, 1, 2_000 * MS), ("cold", "warm", "unknown")
        )
    ],
    "decode_tokens_per_s": [
        Call(output_tokens=output, decode_ns=decode)
        for output, decode in product((None, 0, 7, 8, 100), (None, 0, 50 * MS - 1, 50 * MS, 3_333 * MS))
    ],
    "user_tokens_per_s": [
        Call(output_tokens=output, ttft_ns=first, last_piece_ns=last)
        for output, first, last in product(
            (None, 0, 7, 8, 100), (None, 0, 10 * MS), (None, 0, 59 * MS, 60 * MS, 3_333 * MS)
        )
    ],
    "unexplained_s": [
        Call(ttft_ns=ttft, load_ns=load, prefill_ns=prefill)
        for ttft, load, prefill in product((None, 0, 500 * MS), (None, 0, 100 * MS, 600 * MS), (None, 0, 300 * MS))
    ],
}


@pytest.mark.parametrize("rate", RATES)
def test_rates_are_those_of_the_call(store, rate):
    calls = RATES[rate]
    saved(store, *calls)
    shown = {row["id"]: row[rate] for row in store.db.query(f"SELECT id, {rate} FROM call_rates")}
    expected = {call.id: figure(call, rate) for call in calls}
    assert {id for id, value in shown.items() if value is None} == {id for id, v in expected.items() if v is None}
    assert shown == pytest.approx(expected)
    assert {value is None for value in expected.values()} == {True, False}


def figure(call: Call, rate: str) -> float | None:
    if rate == "unexplained_s":
        return None if call.unexplained_ns is None else call.unexplained_ns / 1e9
    return getattr(call, rate)


def test_times_are_seconds(store):
    nanoseconds = {name: (n + 1) * 1_500 * MS for n, name in enumerate(Call().row()) if name.endswith("_ns")}
    saved(store, Call(**nanoseconds))
    (row,) = store.db.query("SELECT * FROM call_rates")
    for name, value in nanoseconds.items():
        if name != "server_total_ns":
            assert row[name.removesuffix("_ns") + "_s"] == pytest.approx(value / 1e9)


@pytest.mark.parametrize("values", [[5], [5, 1], [3, 1, 2], [4, 1, 3, 2], [1, 1, 9, 9, 9]])
def test_a_cell_has_median_and_range(store, values):
    run = saved(store, *(measured(ttft_ns=value * 1_000 * MS, prompt_tokens=value) for value in values))
    cell = cells(store, run)[None, 100]
    assert (cell["n"], cell["calls"]) == (len(values), len(values))
    assert cell["ttft_s"] == cell["prompt_tokens"] == median(values)
    assert (cell["ttft_min_s"], cell["ttft_max_s"]) == (min(values), max(values))


def test_figures_that_are_missing_do_not_move_the_median(store):
    run = saved(store, *(measured(ttft_ns=ns) for ns in (None, 1_000 * MS, None, 3_000 * MS, 2_000 * MS)))
    cell = cells(store, run)[None, 100]
    assert (cell["n"], cell["ttft_s"], cell["ttft_answer_s"]) == (5, 2.0, None)


def test_cells_are_told_apart_and_only_measured_calls_count(store):
    run = saved(
        store,
        measured(size=100, ttft_ns=1_000 * MS),
        measured(size=3000, ttft_ns=2_000 * MS),
        measured("repeat_prompt", 3000, variant="again", ttft_ns=3_000 * MS),
        replace(measured(size=100, ttft_ns=9_000 * MS), purpose="warmup"),
        replace(measured(size=100, ttft_ns=9_000 * MS), purpose="anchor"),
    )
    saved(store, measured(size=100, ttft_ns=8_000 * MS))
    assert {key: cell["ttft_s"] for key, cell in cells(store, run).items()} == {
        (None, 100): 1.0,
        (None, 3000): 2.0,
        ("again", 3000): 3.0,
    }


def test_failed_and_reloaded_calls_are_counted_and_not_averaged_in(store):
    run = saved(
        store,
        measured(ttft_ns=1_000 * MS),
        measured(ttft_ns=3_000 * MS, flags="short_answer"),
        measured(ttft_ns=50_000 * MS, outcome="timeout"),
        measured(ttft_ns=60_000 * MS, outcome="error", flags="reloaded"),
        measured(ttft_ns=70_000 * MS, flags="reloaded,short_answer"),
    )
    cell = cells(store, run)[None, 100]
    assert (cell["n"], cell["calls"], cell["failed"], cell["reloaded"]) == (2, 5, 2, 1)
    assert (cell["ttft_s"], cell["ttft_max_s"]) == (2.0, 3.0)


def test_a_cell_without_a_good_call_has_no_figures(store):
    run = saved(store, measured(outcome="error", ttft_ns=MS))
    cell = cells(store, run)[None, 100]
    assert (cell["n"], cell["failed"], cell["ttft_s"], cell["all_tokens_per_s"]) == (0, 1, None, None)


def burst(repeat: int, *users: tuple[int, int, int], **columns: Any) -> list[Call]:
    """One call for each user: (ttft, last piece) in seconds and output tokens."""
    return [
        measured(
            "users", len(users), repeat=repeat, user=user, ttft_ns=ttft * 1_000 * MS, last_piece_ns=last * 1_000 * MS,
            output_tokens=tokens, **columns,
        )
        for user, (ttft, last, tokens) in enumerate(users)
    ]  # fmt: skip


def test_users_are_medians_over_bursts(store):
    run = saved(
        store,
        *burst(0, (1, 11, 101), (2, 12, 101), (3, 13, 101), (10, 20, 97)),
        *burst(1, (1, 11, 201), (1, 11, 201), (1, 11, 201), (1, 11, 201)),
        *burst(2, (3, 53, 101), (3, 53, 101), (3, 53, 101), (4, 54, 101)),
    )
    cell = cells(store, run)[None, 4]
    assert (cell["n"], cell["calls"]) == (3, 12)
    assert cell["ttft_s"] == median([2.5, 1, 3])
    assert (cell["ttft_min_s"], cell["ttft_max_s"]) == (1, 3)
    assert cell["worst_ttft_s"] == median([10, 1, 4])
    assert cell["user_tokens_per_s"] == median([10, 20, 2])
    assert cell["all_tokens_per_s"] == pytest.approx(median([400 / 20, 804 / 11, 404 / 54]))


def test_a_failed_user_is_counted_and_adds_nothing_to_the_burst(store):
    good = burst(0, (1, 10, 100), (2, 10, 100), (3, 10, 100))
    failed = replace(good[2], ttft_ns=90_000 * MS, last_piece_ns=99_000 * MS, outcome="timeout")
    cell = cells(store, saved(store, *good[:2], failed))[None, 3]
    assert (cell["n"], cell["calls"], cell["failed"]) == (1, 3, 1)
    assert (cell["ttft_s"], cell["worst_ttft_s"], cell["all_tokens_per_s"]) == (1.5, 2, 20)


def test_remembered_words_are_counted(store):
    run = saved(
        store,
        *(
            measured("overflow", 12, variant="no budget", recalled=recalled, cut="proved")
            for recalled in (True, False, False)
        ),
        measured("overflow", 12, variant="no budget", outcome="error"),
    )
    cell = cells(store, run)["no budget", 12]
    assert (cell["recalled"], cell["asked"], cell["cuts"]) == (1, 3, 3)


def test_one_run_is_read_through_the_index(store):
    """A million calls of other runs must not be touched for the cells of one."""
    for view, column in (("cells", "run_id"), ("run_summary", "id"), ("call_rates", "run_id")):
        plan = [row[3] for row in store.db.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {view} WHERE {column} = 'x'")]
        touched = [step for step in plan if " calls" in step]
        assert touched
        assert all(step.startswith("SEARCH calls USING") and "calls_by_run (run_id=?)" in step for step in touched)


def test_the_newest_runs_are_listed_without_summing_up_the_others(store):
    """A sorter would need every row first, with all its counts."""
    sql = "EXPLAIN QUERY PLAN SELECT * FROM run_summary ORDER BY started_utc DESC LIMIT 20"
    plan = [(parent, step) for _, parent, _, step in store.db.execute(sql)]
    assert (0, "SCAN runs USING INDEX runs_by_start") in plan
    assert not [step for parent, step in plan if parent == 0 and "TEMP B-TREE" in step]


def test_a_run_is_summed_up(store):
    machine = Machine(id="M", cpu="cpu", ram_bytes=8 << 30, gpu="gpu", gpu_memory_bytes=4 << 30)
    model = Model(name="demo", digest="aaa", quantization="Q4_K_M")
    store.save_machine(machine)
    store.save_model(model)
    run = saved(
        store,
        measured(ttft_ns=1_000 * MS, output_tokens=10, decode_ns=1_000 * MS),
        measured(ttft_ns=2_000 * MS, output_tokens=30, decode_ns=1_000 * MS, cut="suspected"),
        Call(ttft_ns=3_000 * MS, cut="proved"),
        Call(ttft_ns=99_000 * MS, purpose="warmup", cut="no"),
        *(Call(ttft_ns=99_000 * MS, outcome=o) for o in ("error", "timeout", "timeout", "cancelled", "incomplete")),
        tag="laptop",
        machine_id=machine.id,
        model_id=model.id,
        num_ctx=4096,
    )
    empty = saved(store)
    rows = {row["id"]: row for row in store.db.query("SELECT * FROM run_summary")}
    summary = rows[run.id]
    assert summary["short_id"] == run.id[-6:]
    expected = {
        "tag": "laptop", "cpu": "cpu", "ram_bytes": 8 << 30, "gpu": "gpu", "model": "demo", "quantization": "Q4_K_M",
        "num_ctx": 4096, "calls": 9, "ok": 4, "error": 1, "timeout": 2, "cancelled": 1, "incomplete": 1, "cuts": 2,
        "ttft_s": 2.0, "decode_tokens_per_s": 20.0,
    }  # fmt: skip
    assert {name: summary[name] for name in expected} == expected
    assert (rows[empty.id]["calls"], rows[empty.id]["ttft_s"], rows[empty.id]["model"]) == (0, None, None)


def test_a_burst_made_again_counts_once_and_half_a_burst_not_at_all(store):
    whole = burst(1, (100, 1_000, 50), (200, 2_000, 50))
    again = burst(1, (300, 1_000, 50), (400, 2_000, 50))
    half = burst(2, (900, 3_000, 50), (950, 4_000, 50))[:1]
    calls = [replace(call, size=2) for call in (*whole, *again, *half)]
    run = saved(store, *calls)
    (row,) = cells(store, run).values()
    (cell,) = python_cells(store.calls(run.id))
    assert (row["n"], cell.n) == (1, 1)
    assert row["worst_ttft_s"] == pytest.approx((cell.median("ttft_worst_ns") or 0) / 1e9)
    assert row["all_tokens_per_s"] == pytest.approx(cell.median("total_tokens_per_s"))
    assert row["ttft_s"] == 350
