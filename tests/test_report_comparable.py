"""May I compare: every mark a row can carry, each from the difference that causes it."""

from typing import Any

import pytest
from lesson_runs import anchors, burst, overflow_call, prompt_call, side

from llmlab.call import Call
from llmlab.model import Model
from llmlab.report.document import Report
from llmlab.report.facts import Mark
from llmlab.report.rows import Row

Q4 = Model(name="demo:latest", digest="sha256:aaa", quantization="Q4_K_M")
Q8 = Model(name="demo:latest", digest="sha256:bbb", quantization="Q8_0")
SAME_AS_Q4 = Model(name="demo:1b", digest="sha256:aaa", quantization="Q4_K_M")
UNKNOWN = Model(name="demo:latest")


def prompts(tokens: int = 130, n: int = 3, **columns: Any) -> list[Call]:
    return [prompt_call(100, tokens, 7, 19, 8.6, **columns) for _ in range(n)]


def crowd() -> list[Call]:
    return [call for repeat in range(3) for call in burst(2, 1, 10, repeat=repeat)]


def words(**columns: Any) -> list[Call]:
    return [overflow_call(12, "no_budget", False, **columns) for _ in range(3)]


def report(
    a: list[Call], b: list[Call], models: tuple[Model, Model] = (Q4, Q4), runs: tuple[dict[str, Any], ...] = ({}, {})
) -> Report:
    return Report.of([side(a, "a", models[0], **runs[0]), side(b, "b", models[1], **runs[1])])


def row(*args: Any, **columns: Any) -> Row:
    return report(*args, **columns).rows[0]


def test_the_same_thing_twice_is_ok() -> None:
    found = report(prompts(), prompts())
    assert [r.verdict for r in found.rows] == ["ok"]
    assert found.differences == []


@pytest.mark.parametrize(
    ("a", "b", "runs", "why"),
    [
        (prompts(), prompts(), ({"bench_version": 1}, {"bench_version": 2}), "other bench version"),
        (
            prompts(),
            prompts(),
            ({"plan_json": '{"num_predict": 64}'}, {"plan_json": '{"num_predict": 32}'}),
            "other answer length",
        ),
        (
            crowd(),
            crowd(),
            ({"plan_json": '{"users_predict": 130}'}, {"plan_json": '{"users_predict": 48}'}),
            "other answer length",
        ),
        (prompts(), prompts(tokens=160), ({}, {}), "other prompt length"),
        (prompts(), [], ({}, {}), "not measured by b"),
        ([], prompts(), ({}, {}), "not measured by a"),
        (prompts(), prompts(outcome="error"), ({}, {}), "nothing good from b"),
        (prompts(), prompts(cut="proved"), ({}, {}), "cut on one side"),
        (prompts(), prompts(flags="reloaded"), ({}, {}), "reloaded on one side"),
        (words(), words(num_ctx_loaded=2048), ({}, {}), "other window"),
        (
            words(num_ctx_loaded=None),
            words(num_ctx_loaded=None),
            ({"num_ctx": 1024}, {"num_ctx": 4096}),
            "other window",
        ),
    ],
)
def test_what_makes_a_row_not_comparable(
    a: list[Call], b: list[Call], runs: tuple[dict[str, Any], ...], why: str
) -> None:
    found = row(a, b, runs=runs)
    assert (found.mark, found.why) == (Mark.no, (why,))


@pytest.mark.parametrize(
    ("key", "a", "b", "why"),
    [
        ("server_version", "0.12.6", "0.13.0", "other server"),
        ("server_kind", "ollama", "vllm", "other server"),
        ("server_version", "0.12.6", None, "other server"),
        ("num_ctx_loaded", 4096, 2048, "other window"),
        ("power", "mains", "battery", "on battery"),
        ("power", "battery", "battery", "on battery"),
        ("load_average", 0.1, 0.9, "busy CPU"),
        ("outcome", "ok", "interrupted", "run cut short"),
        ("outcome", None, "ok", "run cut short"),
    ],
)
def test_what_calls_for_caution(key: str, a: Any, b: Any, why: str) -> None:
    base = {"server_kind": "ollama", "server_version": "0.12.6", "num_ctx": 4096}
    found = report(prompts(), prompts(), runs=({**base, key: a}, {**base, key: b}))
    assert (found.rows[0].mark, found.rows[0].why) == (Mark.caution, (why,))
    assert why in {fact.why for fact in found.differences}


def test_a_fact_only_one_run_knows_is_not_taken_for_a_difference() -> None:
    found = row(prompts(), prompts(), runs=({"server_kind": "ollama"}, {}))
    assert found.why == ("server not known",)


def test_a_model_partly_off_the_gpu_calls_for_caution_and_one_fully_on_it_does_not() -> None:
    def loaded(share: float) -> dict[str, int]:
        return {"size_bytes": 1000, "size_vram_bytes": int(1000 * share)}

    assert row(prompts(), prompts(), runs=(loaded(1), loaded(0.6))).why == ("GPU spill",)
    whole = report(prompts(), prompts(), runs=(loaded(1), loaded(0)))
    assert whole.rows[0].mark is Mark.ok
    assert [(fact.name, fact.shown) for fact in whole.differences] == [("on the GPU", ("100 %", "0 %"))]


def test_drift_and_few_samples_call_for_caution() -> None:
    hot = [*prompts(), *anchors([2, 2.2, 2.4, 2.6])]
    assert row(prompts(), hot).why == ("drift",)
    assert row(prompts(), prompts(n=2)).why == ("n = 3 / 2",)
    assert row(prompts(n=1), prompts(n=1)).why == ("n = 1",)


def test_failures_and_flags_are_carried_by_their_row() -> None:
    found = row([*prompts(), *prompts(n=2, outcome="timeout")], prompts(flags="short_answer"))
    assert (found.mark, found.why) == (Mark.caution, ("2 failed", "short answer"))


def test_slots_matter_to_users_alone() -> None:
    found = report([*prompts(), *crowd()], [*prompts(), *crowd()], runs=({"slots": 1}, {"slots": 4}))
    assert [(r.experiment, r.why) for r in found.rows] == [("prompt_length", ()), ("users", ("other slots",))]


def test_another_window_is_a_caution_for_speed_and_the_end_for_overflow() -> None:
    calls = [*prompts(), *words()]
    found = report(
        calls, calls[:3] + words(num_ctx_loaded=2048), runs=({"num_ctx_loaded": 1024}, {"num_ctx_loaded": 2048})
    )
    assert [r.mark for r in found.rows] == [Mark.caution, Mark.no]


def test_models_are_compared_by_digest_not_by_name() -> None:
    """One name can be two sets of weights, two names can be one, and an unknown digest is never taken for the same."""
    assert row(prompts(), prompts(), models=(Q4, Q8)).why == ("different weights",)
    renamed = report(prompts(), prompts(), models=(Q4, SAME_AS_Q4))
    assert renamed.rows[0].mark is Mark.ok
    assert [fact.name for fact in renamed.differences] == ["model"]
    assert "weights not known" in row(prompts(), prompts(), models=(Q4, UNKNOWN)).why
    assert row(prompts(), prompts(), models=(UNKNOWN, UNKNOWN)).why == ("weights not known",)


def test_two_machines_of_one_type_are_two() -> None:
    found = report(prompts(), prompts(), runs=({"machine_id": "AAAAAAAA"}, {"machine_id": "BBBBBBBB"}))
    (machine,) = found.differences
    assert machine.shown == ("unknown machine (AAAAAA)", "unknown machine (BBBBBB)")
    assert machine.mark is Mark.ok


def test_of_three_runs_the_odd_one_marks_the_row() -> None:
    sides = [side(prompts(), label, Q4, server_kind=kind) for label, kind in (("a", "x"), ("b", "x"), ("c", "y"))]
    assert Report.of(sides).rows[0].why == ("other server",)


def test_a_plan_that_cannot_be_read_is_no_plan() -> None:
    assert row(prompts(), prompts(), runs=({"plan_json": "{broken"}, {"plan_json": "[1]"})).mark is Mark.ok
