"""The bench against a server of known speed: its figures are the true ones, and its words fit them."""

import asyncio
import io
import json
import re
import signal
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from bench_runs import FAST, SMALL, Done, bench, bench_of, opened

from llmlab.bench import BenchOptions, run_bench
from llmlab.call import has_flag
from llmlab.cells import Cell
from llmlab.client import Client
from llmlab.errors import LabError, UsageError
from llmlab.fake import FakeServer, Figures, Served
from llmlab.figures import format_value
from llmlab.run import Run
from llmlab.settings import find_server
from llmlab.store import Store

MS = 1_000_000


def near(value: float | None, truth: float, least: float = 5 * MS) -> bool:
    """Within 2 %, or 5 ms."""
    return value is not None and abs(value - truth) <= max(0.02 * truth, least)


async def test_waits_and_speeds_are_the_true_ones(tmp_path: Path) -> None:
    """Each sample has its own truth; a busy machine can spoil some, a wrong definition spoils all."""
    figures = Figures(prefill_tokens_per_s=10_000, decode_gap_ns=3 * MS, depth_cost=0.5, load_ns=50 * MS)
    run = await bench(tmp_path, figures, "prompt_length", repeat=3, num_predict=24)
    assert run.run.outcome == "ok"
    for cell in run.cells("prompt_length"):
        calls = [c for c in run.measured("prompt_length") if c.size == cell.size]
        true = [run.served[c.id] for c in calls]
        assert cell.figures["prefill_ns"].samples == tuple(t.prefill_ns for t in true)
        assert cell.figures["decode_ns"].samples == tuple(t.decode_ns for t in true)
        pairs = list(zip(calls, true, strict=True))
        assert any(near(c.ttft_ns, t.ttft_ns or 0) for c, t in pairs)
        assert any(near((c.last_piece_ns or 0) - (c.ttft_ns or 0), t.decode_ns) for c, t in pairs)
        speed = median(t.read_tokens / t.prefill_ns * 1e9 for t in true)
        assert cell.median("prefill_tokens_per_s") == pytest.approx(speed, rel=0.02)
        assert cell.median("decode_tokens_per_s") == pytest.approx(median(24 / t.decode_ns * 1e9 for t in true))
        assert cell.median("ttft_ns") == median(c.ttft_ns or 0 for c in calls)
        row = next(line for line in run.out.splitlines() if line.startswith(f"{cell.size} "))
        for name in ("prompt_tokens", "ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s"):
            assert format_value(name, cell.median(name)) in row


@pytest.mark.parametrize("chars_per_token", [3, 4, 6])
async def test_lengths_are_what_was_asked_as_the_server_counts(tmp_path: Path, chars_per_token: int) -> None:
    run = await bench(tmp_path, Figures(**FAST, chars_per_token=chars_per_token), "prompt_length", "repeat_prompt")
    for call in run.measured("prompt_length") + run.measured("repeat_prompt", "first"):
        assert call.prompt_tokens == pytest.approx(call.size, rel=0.03)
    anchors = [c.prompt_tokens for c in run.calls if c.purpose == "anchor"]
    assert anchors == pytest.approx([256] * 3, rel=0.03)


async def test_cold_prompts_share_no_beginning_however_often_they_are_repeated(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST), "prompt_length", sizes=(300,), repeat=5)
    served = [run.served[c.id] for c in run.measured("prompt_length")]
    starts = [t.body["messages"][0]["content"][:8] for t in served]
    assert [t.body["messages"][0]["role"] for t in served] == ["system"] * 5
    assert len({*starts}) == 5 and all(re.fullmatch(r"\d{8}", start) for start in starts)
    assert max(t.cached_tokens for t in served) <= 3


async def test_every_measured_call_is_asked_alike(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST), "prompt_length", "users", users=(1, 2))
    for call in run.measured("prompt_length") + run.measured("users"):
        body = run.served[call.id].body
        assert body["truncate"] is False
        assert body["options"] == {"temperature": 0, "seed": 42, "num_ctx": 1024, "num_predict": 16}
        assert body["keep_alive"] == 600
    assert {t.body["options"]["num_ctx"] for t in run.all_served} == {1024}
    assert run.all_served[-1].body["keep_alive"] == "5m"
    assert "think" not in run.all_served[0].body


async def test_the_same_seed_asks_the_same_text_behind_another_nonce(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        run = await bench(tmp_path / name, Figures(**FAST), "prompt_length", sizes=(100, 300), seed=7)
        bodies = [run.served[c.id].body["messages"] for c in run.measured("prompt_length")]
        texts.append([(system["content"][8:], user["content"]) for system, user in bodies])
    assert texts[0] == texts[1]


async def test_load_is_apart_and_a_reloaded_sample_is_measured_again(tmp_path: Path) -> None:
    """Calls 0 to 3 are the warm-up and the first anchor; another client unloads the model at the first sample."""
    figures = Figures(**FAST, load_ns=310 * MS, faults={4: "unload"})
    run = await bench(tmp_path, figures, "prompt_length", sizes=(100, 300))
    first, again, other = run.measured("prompt_length")
    assert [has_flag(c, "reloaded") for c in (first, again, other)] == [True, False, False]
    assert (first.repeat, again.repeat) == (1, 1)
    cell = run.cell("prompt_length", size=100)
    assert cell.n == 1 and not cell.reloaded
    assert (cell.median("ttft_ns") or 0) < 300 * MS
    assert "reloaded in mid-run" in run.err and "load: 0.3" in run.err
    assert any("reloaded" in mark for mark in run.found["marks"])


async def test_a_model_unloaded_between_experiments_is_warmed_up_outside_of_the_figures(tmp_path: Path) -> None:
    figures = Figures(**FAST, load_ns=310 * MS, faults={6: "unload_after"})
    run = await bench(tmp_path, figures, "prompt_length", "repeat_prompt", sizes=(100, 300))
    assert [run.served[c.id].number for c in run.calls if c.purpose == "anchor"] == [3, 6, 15]
    assert not any(has_flag(c, "reloaded") for c in run.calls)
    assert "unloaded in mid-run" in run.err


async def test_short_answers_are_flagged_with_their_count(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, stop_after=3), "prompt_length", num_predict=128)
    assert all(has_flag(c, "short_answer") for c in run.measured("prompt_length"))
    assert run.cell("prompt_length", size=100).median("decode_tokens_per_s") is None
    assert "short answer (4 of 128 tokens)" in run.out


async def test_a_model_that_never_stops_is_stopped(tmp_path: Path) -> None:
    faults = dict.fromkeys((4, 5), "endless")
    run = await bench(tmp_path, Figures(**FAST, faults=faults), "prompt_length", sizes=(100, 300), total_s=0.3)
    stopped = [c for c in run.measured("prompt_length") if c.outcome == "timeout"]
    assert len(stopped) == 2 and all(c.pieces > 16 for c in stopped)
    assert [cell.n for cell in run.cells("prompt_length")] == [1, 1]
    assert run.run.outcome == "ok"


async def test_all_failed_cells_print_a_dash_and_the_reason_and_the_run_has_failed(tmp_path: Path) -> None:
    figures = Figures(**FAST, faults=dict.fromkeys(range(4, 60), "refuse"))
    run = await bench(tmp_path, figures, "prompt_length", "users", sizes=(100,))
    assert run.run.outcome == "failed"
    assert {cell.n for cell in run.cells("prompt_length") + run.cells("users")} == {0}
    row = next(line for line in run.out.splitlines() if line.startswith("100 "))
    assert "–" in row and "2 failed" in row and row.count("told to refuse") == 1
    assert "nan" not in run.out.lower()


async def test_a_server_without_counts_still_gives_times(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, counts=False), num_ctx=1024)
    assert run.run.outcome == "ok"
    assert all(c.ttft_ns for c in run.measured("prompt_length"))
    assert all(cell.median("prefill_tokens_per_s") is None for cell in run.cells("prompt_length"))
    assert "–" in run.out and "nan" not in run.out.lower()


async def test_a_repeated_prompt_is_almost_free(tmp_path: Path) -> None:
    figures = Figures(prefill_tokens_per_s=5_000, decode_gap_ns=MS, reports_cached=True)
    run = await bench(tmp_path, figures, "repeat_prompt", repeat=2)
    waits = {cell.variant: cell.median("ttft_ns") or 0 for cell in run.cells("repeat_prompt")}
    cached = {cell.variant: cell.median("cached_tokens") or 0 for cell in run.cells("repeat_prompt")}
    assert waits["again"] < waits["same_start"] + 5 * MS < waits["first"] / 3
    assert all(waits[v] == pytest.approx(waits["first"], rel=0.3) for v in ("new_start", "control"))
    assert cached["again"] > 590 and cached["same_start"] > 500
    assert max(cached[v] for v in ("first", "new_start", "control")) <= 3
    assert "A repeated prefix is almost free" in run.out
    states = {(c.variant, c.cache_state) for c in run.calls if c.experiment == "repeat_prompt"}
    assert states == {(v, "warm" if v in ("again", "same_start") else "cold") for v in waits}
    lengths = {cell.variant: cell.median("prompt_tokens") or 0 for cell in run.cells("repeat_prompt")}
    assert all(length == pytest.approx(600, rel=0.03) for length in lengths.values())


async def test_no_reuse_is_said_even_after_an_expensive_first_call(tmp_path: Path) -> None:
    figures = Figures(prefill_tokens_per_s=5_000, decode_gap_ns=MS, reuse_prompts=0, first_prefill_ns=800 * MS)
    run = await bench(tmp_path, figures, "repeat_prompt")
    assert "No reuse here" in run.out
    assert (run.cell("repeat_prompt", "first").median("ttft_ns") or 0) < 300 * MS


@pytest.mark.parametrize("slots", [1, 2, 4])
async def test_slots_are_exact_and_the_figures_of_a_burst_are_the_true_ones(tmp_path: Path, slots: int) -> None:
    figures = Figures(prefill_tokens_per_s=50_000, decode_gap_ns=2 * MS, slots=slots)
    run = await bench(tmp_path, figures, "users", users=(1, 8), num_predict=40, repeat=3)
    assert run.run.slots == slots
    cell = run.cell("users", size=8)
    bursts = [[c for c in run.measured("users") if (c.size, c.repeat) == (8, repeat)] for repeat in (1, 2, 3)]
    assert any(burst_is_true(cell, number, [run.served[c.id] for c in burst]) for number, burst in enumerate(bursts))
    stairs = zip(*(sorted(c.ttft_ns or 0 for c in burst) for burst in bursts), strict=True)
    assert cell.staircase_ns == tuple(median(step) for step in stairs)
    queued = median(median(c.unexplained_ns or 0 for c in burst) for burst in bursts)
    row = next(line for line in run.out.splitlines() if line.startswith("8 "))
    assert f"  {format_value('unexplained_ns', queued)}" in row
    assert "OLLAMA_NUM_PARALLEL" in run.out
    assert f"Slots: {slots} (" in run.out
    assert ("one at a time: 7 of 8 users queued" if slots == 1 else f"the other {8 - slots} queued") in run.out


def burst_is_true(cell: Cell, number: int, true: list[Served]) -> bool:
    """Whether every figure of one burst is what the server did; a busy machine can spoil a burst, not all of them."""
    said = {name: figure.samples[number] for name, figure in cell.figures.items()}
    waits = [t.ttft_ns or 0 for t in true]
    span_ns = max(t.last_ns or 0 for t in true) - min(t.arrived_ns for t in true)
    return (
        near(said["ttft_ns"], median(waits))
        and near(said["ttft_worst_ns"], max(waits))
        and near(8 * 40 / said["total_tokens_per_s"] * 1e9, span_ns)
        and near(39 / said["user_tokens_per_s"] * 1e9, median(t.decode_ns for t in true))
    )


async def test_sharing_is_told_from_queueing(tmp_path: Path) -> None:
    figures = Figures(prefill_tokens_per_s=50_000, decode_gap_ns=2 * MS, slots=4, share=1.0)
    run = await bench(tmp_path, figures, "users", num_predict=40)
    assert run.run.slots == 4 and run.found["slots_at_least"]
    assert "Slots: ≥ 4 (≥ 4 answers ran at once and shared the machine" in run.out
    assert "OLLAMA_NUM_PARALLEL" not in run.out


async def test_all_users_are_on_their_way_before_one_is_answered(tmp_path: Path) -> None:
    """No limit of our own holds anybody back, and the connections are there before the barrier falls."""
    run = await bench(tmp_path, Figures(**FAST, slots=8), "users", users=(8,))
    calls = run.measured("users")
    true = [run.served[c.id] for c in calls]
    assert max(t.arrived_ns for t in true) < min(t.done_ns or 0 for t in true)
    assert len({json.dumps(t.body["messages"]) for t in true}) == 8
    assert len({t.body["messages"][1]["content"] for t in true}) == 8
    assert [c.connect_ns for c in calls] == [None] * 8
    assert sorted(c.in_flight or 0 for c in calls) == list(range(8))


async def test_a_failed_user_is_counted_and_never_averaged_in(tmp_path: Path) -> None:
    figures = Figures(prefill_tokens_per_s=50_000, decode_gap_ns=2 * MS, slots=4, faults={6: "refuse"})
    run = await bench(tmp_path, figures, "users", users=(4,), num_predict=20)
    cell = run.cell("users")
    good = [c for c in run.measured("users") if c.outcome == "ok"]
    assert (cell.n, cell.failed, len(good)) == (1, 1, 3)
    span_ns = max((c.connect_ns or 0) + (c.last_piece_ns or 0) for c in good)
    assert cell.median("ttft_ns") == median(c.ttft_ns or 0 for c in good)
    assert cell.median("total_tokens_per_s") == pytest.approx(60 / span_ns * 1e9)
    assert "1 failed: " in run.out and "told to refuse" in run.out


async def test_a_window_that_is_smaller_under_load_is_said(tmp_path: Path) -> None:
    figures = Figures(**FAST, slots=4, window_busy=24, honours_truncate=False)
    run = await bench(tmp_path, figures, "users", users=(1, 4))
    assert [c.cut for c in run.measured("users") if c.size == 1] == [None]
    assert [c.cut for c in run.measured("users") if c.size == 4].count("suspected") >= 2
    rows = {line[0]: line for line in run.out.splitlines() if re.match(r"[14]  ", line)}
    assert "window smaller under load" in rows["4"] and "window smaller" not in rows["1"]


async def test_a_run_before_another_models_frees_its_memory(tmp_path: Path) -> None:
    options = {"users": (1,), "experiments": ("users",)}
    with FakeServer(Figures(**FAST)) as fake, opened(tmp_path / "lab.db") as store:
        async with Client(find_server(fake.url, "auto", {})) as client:
            where = await bench_of(client, store, fake.model, io.StringIO(), io.StringIO())
            await run_bench(BenchOptions(**{**SMALL, **options}), replace(where, unload=True))
            assert fake.served[-1].body["keep_alive"] == 0
            assert await client.loaded() == []


def reasons(run: Done) -> dict[tuple[str | None, int | None], tuple[Any, ...]]:
    return {(c.variant, c.size): (c.recalled, c.asked, c.refused, c.reasons) for c in run.cells("overflow")}


async def test_overflow_loses_the_word_and_the_pin_keeps_it(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST), "overflow", repeat=3)
    assert reasons(run) == {
        ("no_budget", 2): (3, 3, 0, ()),
        ("no_budget", 6): (3, 3, 0, ()),
        ("no_budget", 12): (0, 3, 0, ("cut by the server",) * 3),
        ("truncate_false", 12): (None, 0, 3, ()),
        ("budget", 12): (0, 3, 0, ("dropped by the budget",) * 3),
        ("budget_pin", 12): (3, 3, 0, ()),
    }
    plain = [c for c in run.measured("overflow", "no_budget") if c.size == 12]
    assert {c.cut for c in plain} == {"proved"} and all("1,0" in (c.cut_evidence or "") for c in plain)
    read = [run.cell("overflow", "no_budget", turns).median("prompt_tokens") or 0 for turns in (2, 6)]
    assert [r / 1024 for r in read] == pytest.approx([0.24, 0.63], abs=0.04)
    assert re.search("After 12 turns.*lost.*cut by the server", run.out)
    assert "2 of 3" not in run.out and "3 of 3" in run.out and "refused" in run.out
    words = [t.body["messages"][0]["content"] for t in run.all_served if "Remember this" in str(t.body)]
    assert len(set(words)) == 3 * 4 + 3  # the dropping budget leaves its word out


async def test_a_word_that_fitted_was_forgotten_by_the_model(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, forgets=True), "overflow", turns=(2,))
    assert reasons(run)[("no_budget", 2)] == (0, 1, 0, ("model forgot although it fit",))
    (call,) = run.measured("overflow", "no_budget")
    assert (call.cut, call.cut_evidence) == ("no", "accepted with truncate: false")


async def test_a_pinned_word_that_is_lost_was_not_dropped(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, forgets=True), "overflow", turns=(12,))
    assert reasons(run)[("budget", 12)] == (0, 1, 0, ("dropped by the budget",))
    assert reasons(run)[("budget_pin", 12)] == (0, 1, 0, ("model forgot although it fit",))


async def test_a_model_that_leaves_system_messages_out_is_measured_cold_all_the_same(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, ignores_system=True), "prompt_length", sizes=(300,), repeat=3)
    served = [run.served[c.id] for c in run.measured("prompt_length")]
    assert [len(t.body["messages"]) for t in served] == [1, 1, 1]
    assert all(re.match(r"\d{8} ", t.body["messages"][0]["content"]) for t in served)
    assert max(t.cached_tokens for t in served) <= 3
    assert all(has_flag(c, "system_ignored") for c in run.measured("prompt_length"))
    assert "leaves system messages out" in run.err
    assert all(c.prompt_tokens == pytest.approx(300, rel=0.03) for c in run.measured("prompt_length"))


async def test_no_text_is_no_answer(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, mute=True), "overflow", turns=(2,))
    assert reasons(run)[("no_budget", 2)] == (None, 1, 0, ("no answer",))
    assert "no answer" in run.out and "forgot" not in run.out


async def test_a_server_that_does_not_know_truncate_is_suspected_by_its_count(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, honours_truncate=False), "overflow", turns=(12,), num_ctx=512)
    assert {c.cut for c in run.measured("overflow", "no_budget")} == {"suspected"}
    assert reasons(run)[("truncate_false", 12)] == (0, 1, 0, ("probably cut by the server",))


async def test_a_cut_prompt_is_seen_in_prompt_length(tmp_path: Path) -> None:
    figures = Figures(**FAST, window=512, honours_truncate=False)
    run = await bench(tmp_path, figures, "prompt_length", sizes=(100, 800))
    short, long = run.measured("prompt_length")
    assert (short.cut, long.cut, long.num_ctx_loaded) == (None, "suspected", 512)
    assert "cut by the server" in run.out
    assert "loaded a window of 512 tokens, not the 1,024 asked" in run.err
    assert run.run.num_ctx_loaded == 512


async def test_thinking_is_turned_off_where_the_model_lets_it(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, thinking_tokens=4), "prompt_length", sizes=(100,))
    (call,) = run.measured("prompt_length")
    assert run.served[call.id].body["think"] is False
    assert call.ttft_ns == call.ttft_answer_ns and not has_flag(call, "thinking")


async def test_a_model_that_must_think_gets_room_and_a_mark(tmp_path: Path) -> None:
    figures = Figures(**FAST, thinking_tokens=4, refuses_no_think=True, answer_tokens=20, stop_after=20)
    run = await bench(tmp_path, figures, "prompt_length", sizes=(100,))
    (call,) = run.measured("prompt_length")
    body = run.served[call.id].body
    assert "think" not in body and body["options"]["num_predict"] == 1024
    assert has_flag(call, "thinking") and (call.ttft_answer_ns or 0) > (call.ttft_ns or 0)
    assert "first word of answer" in run.out and "always thinks" in run.out


async def test_the_openai_wire_is_measured_too(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, openai_only=True, window=1024, slots=2), num_ctx=None)
    assert run.run.outcome == "ok" and run.run.num_ctx == 1024
    assert {c.experiment for c in run.calls if c.purpose == "measured"} == {
        *("prompt_length", "repeat_prompt", "users", "overflow")
    }
    assert not run.measured("overflow", "truncate_false")
    assert all("options" not in t.body and "truncate" not in t.body for t in run.all_served)
    assert run.cell("repeat_prompt", "again").median("cached_tokens")


async def test_anchors_give_drift_and_noise(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST), "prompt_length", "users", sizes=(100,), users=(1,))
    anchors = [c for c in run.calls if c.purpose == "anchor"]
    assert [(c.experiment, c.output_tokens) for c in anchors] == [(None, 32)] * 3
    assert isinstance(run.found["drift"], float) and run.found["noise_floor"] >= 0
    assert "noise floor" in run.out
    assert run.found["findings"] == [line[2:] for line in run.out.splitlines() if line[2:] in run.found["findings"]]


async def test_what_spoils_a_run_is_said_before_it(tmp_path: Path) -> None:
    figures = Figures(**FAST, other_loaded=("big:70b",), size_vram_bytes=40_000_000)
    run = await bench(tmp_path, figures, "prompt_length", sizes=(100,))
    assert "another model is loaded: big:70b" in run.err
    assert "only 40 % of the model is on the GPU" in run.err
    assert (run.run.size_bytes, run.run.size_vram_bytes) == (100_000_000, 40_000_000)
    assert len(run.found["marks"]) >= 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sizes": (100, 3000)}, r"3,000 tokens and 16 of answer do not fit.*--num-ctx 4096 or --sizes 100"),
        ({"sizes": (20,)}, "shorter than its own instructions"),
        ({"users": (0,)}, "--users wants whole numbers from 1 up"),
        ({"experiments": ("nosuch",)}, "no experiment 'nosuch'"),
        ({"num_ctx": 128, "experiments": ("overflow",)}, "anchor calls"),
        ({"sizes": (100, 9000), "num_ctx": 16384}, "this model's longest window of 8,192. Use --sizes 100"),
    ],
)
async def test_what_cannot_fit_is_refused_before_anything_is_sent(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    asked = BenchOptions(**{**SMALL, "experiments": ("prompt_length", "users"), **options})
    with FakeServer(Figures(**FAST)) as fake, opened(tmp_path / "lab.db") as store:
        async with Client(find_server(fake.url, "auto", {})) as client:
            where = await bench_of(client, store, fake.model, io.StringIO(), io.StringIO())
            with pytest.raises(UsageError, match=words):
                await run_bench(asked, where)
        assert fake.served == [] and not store.runs()


async def test_what_the_window_does_to_the_plan_is_said(tmp_path: Path) -> None:
    figures = Figures(**FAST, model_context=512)
    run = await bench(tmp_path, figures, "prompt_length", sizes=None, num_ctx=4096, num_predict=None)
    assert [cell.size for cell in run.cells("prompt_length")] == [100]
    assert "longest window is 512 tokens, not the 4,096 asked" in run.err
    assert "prompts of 1,000, 3,000 tokens do not fit" in run.err
    assert {t.body["options"]["num_ctx"] for t in run.all_served} == {512}


async def test_a_server_that_does_not_tell_what_is_loaded_is_measured_too(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, absent=("/api/ps",)), "prompt_length", "users", sizes=(100,))
    assert run.run.outcome == "ok" and run.run.num_ctx_loaded is None
    assert "unloaded" not in run.err


async def test_plain_tables_are_never_cut_or_wrapped(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST), repeat=2)
    assert all(title in run.out for title in ("Prompt length", "Same prompt twice", "Several users", "Overflow"))
    header = next(line for line in run.out.splitlines() if line.startswith("turns"))
    rows = [line for line in run.out.splitlines() if re.match(r"\d+ +(no budget|budget|truncate)", line)]
    assert len(rows) == 6
    assert {row.index(row.split("  ")[-1] or " ") >= 0 for row in rows} == {True}
    assert all(row[header.index("how") - 1] == " " and row[header.index("how")] != " " for row in rows)
    assert "\x1b" not in run.out + run.err and "\r" not in run.err
    times = [line for line in run.err.splitlines() if line.startswith("[")]
    assert any("of about" in line for line in times) and all(a != b for a, b in pairwise(times))


async def test_a_server_that_goes_away_ends_the_run_with_what_was_measured(tmp_path: Path) -> None:
    with FakeServer(Figures(**FAST)) as fake, opened(tmp_path / "lab.db") as store:
        async with Client(find_server(fake.url, "auto", {})) as client:
            err = io.StringIO()
            where = await bench_of(client, store, fake.model, io.StringIO(), err)
            asked = BenchOptions(**{**SMALL, "repeat": 500, "experiments": ("prompt_length",)})
            task = asyncio.create_task(run_bench(asked, where))
            await measured(store, 4)
            await asyncio.to_thread(fake.stop)
            with pytest.raises(LabError):
                await task
        (run,) = store.runs()
    assert run.outcome == "failed"
    assert "--resume" in err.getvalue()


async def measured(store: Store, n: int) -> None:
    """Wait until `n` measured calls are rows."""
    for _ in range(10_000):
        await store.saved()
        if store.db.execute("select count(*) from calls where purpose = 'measured'").fetchone()[0] >= n:
            return
        await asyncio.sleep(0.005)


async def test_an_interrupted_run_keeps_its_calls_and_resumes_with_the_rest(tmp_path: Path) -> None:
    asked = BenchOptions(**{**SMALL, "repeat": 2, "turns": (2, 12), "keep_text": True, "tag": "laptop"})
    with FakeServer(Figures(**FAST)) as fake, opened(tmp_path / "lab.db") as store:
        async with Client(find_server(fake.url, "auto", {})) as client:
            out, err = io.StringIO(), io.StringIO()
            where = await bench_of(client, store, fake.model, out, err)
            stops = [3, 9, 13, 21, 40]
            task = asyncio.create_task(run_bench(asked, where))
            await measured(store, stops[0])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (run,) = store.runs()
            assert run.outcome == "interrupted" and run.finished_utc
            assert f"llmlab bench --resume {run.id[-6:]}" in err.getvalue()
            for stop in stops[1:]:
                task = asyncio.create_task(run_bench(BenchOptions(), where, resume=store.find_run(run.id)))
                await measured(store, stop)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            ended = await run_bench(BenchOptions(keep_text=True), where, resume=store.find_run(run.id))
            with pytest.raises(UsageError, match="is complete"):
                await run_bench(BenchOptions(), where, resume=store.find_run(run.id))
        assert ended.outcome == "ok" and ended.id == run.id and len(store.runs()) == 1
        once: list[tuple[Any, ...]] = [
            (c.experiment, c.variant, c.size, c.repeat, c.user)
            for c in store.calls(run.id)
            if c.purpose == "measured" and c.outcome != "cancelled"
        ]
    # A burst is whole or made again: only there a user can have an earlier row of the same number.
    assert len([k for k in once if k[0] != "users"]) == len({k for k in once if k[0] != "users"}) == 2 * (3 + 5 + 5)
    assert {k for k in once if k[0] == "users"} == {
        ("users", None, n, repeat, user + 1) for n in (1, 2, 4) for repeat in (1, 2) for user in range(n)
    }


@pytest.mark.parametrize("stop", ["SIGKILL", "SIGINT"])
async def test_a_stopped_process_loses_at_most_the_call_in_flight(tmp_path: Path, stop: str) -> None:
    with FakeServer(Figures(**FAST)) as fake, opened(tmp_path / "lab.db") as store:
        command = ["-m", "llmlab", "bench", "prompt_length", "--host", fake.url, "--num-ctx", "1024", "-n", "16"]
        command += ["--sizes", "100", "--repeat", "30", "--tag", "laptop"]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
        await measured(store, 5)
        process.send_signal(getattr(signal, stop))
        _, err = await process.communicate()
        ended = [t for t in fake.served if t.done_ns and not t.gone]
        (run,) = store.runs()
        kept = [c for c in store.calls(run.id) if c.outcome == "ok"]
        assert len(kept) >= len(ended) - 1
        if stop == "SIGINT":
            assert process.returncode == 130 and run.outcome == "interrupted"
            assert f"Go on with: llmlab bench --resume {run.id[-6:]}" in err.decode()
            assert "Traceback" not in err.decode()
        else:
            assert run.outcome is None
        async with Client(find_server(fake.url, "auto", {})) as client:
            where = await bench_of(client, store, fake.model, io.StringIO(), io.StringIO())
            assert (await run_bench(BenchOptions(), where, resume=run)).outcome == "ok"
        samples = [c.repeat for c in store.calls(run.id) if c.purpose == "measured" and c.outcome == "ok"]
        assert samples == list(range(1, 31))


async def test_only_the_same_model_can_carry_a_run_on(tmp_path: Path) -> None:
    with FakeServer(Figures(**FAST)) as fake, opened(tmp_path / "lab.db") as store:
        async with Client(find_server(fake.url, "auto", {})) as client:
            where = await bench_of(client, store, fake.model, io.StringIO(), io.StringIO())
            asked = BenchOptions(**{**SMALL, "experiments": ("prompt_length",)})
            run = await run_bench(asked, where)
            for columns, words in (
                ({"outcome": "failed", "model_id": "other"}, "other weights"),
                ({"outcome": "failed", "bench_version": 0}, "another version"),
                ({"command": "chat"}, "not a bench run"),
            ):
                changed = Run(**{**run.row(), **columns})
                with pytest.raises(UsageError, match=words):
                    await run_bench(BenchOptions(), where, resume=changed)


async def test_auto_stops_at_five_samples_or_when_the_time_is_spent(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST), "prompt_length", sizes=(100,), repeat=None)
    assert run.cell("prompt_length").n == 5
    assert format_n(run, "100") == "5"


def format_n(run: Done, start: str) -> str:
    """The column n of the row that begins so."""
    row = next(line for line in run.out.splitlines() if line.startswith(f"{start} "))
    return row.split()[-1]
