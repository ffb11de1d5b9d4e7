"""Regression: exit 1 for what really became worse, exit 2 where there is nothing to hold on to."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Lab
from lesson_runs import anchors, burst, keep, prompt_call

from llmlab.call import Call
from llmlab.errors import Exit
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run

WEIGHTS = Model(name="demo:1b", digest="aaa")


@pytest.fixture
def runs(tmp_path: Path) -> Any:
    """`runs(before, after)` stores two runs of one machine and one model with these calls."""

    def store(
        before: list[Call],
        after: list[Call],
        models: tuple[Model | None, Model | None] = (WEIGHTS, WEIGHTS),
        machines: tuple[str, str] = ("one", "one"),
    ) -> None:
        for minute, calls in enumerate((before, after)):
            started = f"2026-10-05T14:0{minute}:00.000Z"
            run = Run(command="bench", tag="laptop", bench_version=1, outcome="ok", started_utc=started)
            keep(tmp_path / "lab.db", run, calls, models[minute], Machine(id=machines[minute]))

    return store


def waits(*seconds: float, **columns: Any) -> list[Call]:
    return [prompt_call(100, 130, wait_s, 19, 8.6, **columns) for wait_s in seconds]


def check(lab: Lab, percent: int) -> tuple[int, str]:
    result = lab("report", "laptop", "--fail-on-regression", str(percent))
    assert "Prompt length" in result.stdout or "Several users" in result.stdout
    return result.exit_code, result.stderr


def test_worse_by_more_than_allowed_with_ranges_apart_is_exit_1(lab: Lab, runs: Any) -> None:
    runs(waits(7.0, 7.1, 7.2), waits(8.4, 8.5, 8.6))
    code, said = check(lab, 10)
    assert code == Exit.FAILED
    assert said == "Worse: Prompt length, 100: first token 7.1 s → 8.5 s (+20 %)\n"
    assert check(lab, 25) == (Exit.OK, "")


def test_ranges_that_touch_are_no_regression(lab: Lab, runs: Any) -> None:
    runs(waits(6.0, 7.1, 8.5), waits(8.4, 8.5, 8.6))
    assert check(lab, 10) == (Exit.OK, "")


def test_faster_is_no_regression(lab: Lab, runs: Any) -> None:
    runs(waits(8.4, 8.5, 8.6), waits(7.0, 7.1, 7.2))
    assert check(lab, 1) == (Exit.OK, "")


def test_a_slower_speed_is_one(lab: Lab, runs: Any) -> None:
    bursts = [[call for repeat in range(3) for call in burst(2, 1, total, repeat=repeat)] for total in (10, 7)]
    runs(*bursts)
    code, said = check(lab, 20)
    assert code == Exit.FAILED
    assert "Several users at once, 2: total 10 tok/s → 7 tok/s (−30 %)" in said


@pytest.mark.parametrize(("noise", "code"), [([2.0] * 3, Exit.FAILED), ([2.0, 2.0, 3.0], Exit.OK)])
def test_few_samples_must_get_over_the_noise(lab: Lab, runs: Any, noise: list[float], code: Exit) -> None:
    runs([*waits(7.0), *anchors(noise)], [*waits(8.4), *anchors(noise)])
    assert check(lab, 10)[0] == code


def test_a_row_that_only_fails_now_is_one(lab: Lab, runs: Any) -> None:
    runs(waits(7.0, 7.1, 7.2), waits(7.0, 7.1, outcome="error", error="down"))
    assert check(lab, 50) == (Exit.FAILED, "Worse: Prompt length, 100: no good answer any more\n")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"machines": ("one", "two")}, "not the same machine"),
        ({"models": (WEIGHTS, Model(name="demo:1b", digest="bbb"))}, "not known to be the same weights"),
        ({"models": (WEIGHTS, Model(name="demo:1b"))}, "not known to be the same weights"),
        ({"models": (None, None)}, "not known to be the same weights"),
    ],
)
def test_other_machines_and_weights_are_exit_2(lab: Lab, runs: Any, kwargs: Any, words: str) -> None:
    runs(waits(7.0, 7.1, 7.2), waits(8.4, 8.5, 8.6), **kwargs)
    code, said = check(lab, 10)
    assert code == Exit.USAGE and words in said


def test_one_run_or_no_row_in_common_is_exit_2(lab: Lab, runs: Any) -> None:
    runs(waits(7.0), burst(2, 1, 10))
    code, said = check(lab, 10)
    assert code == Exit.USAGE and "no comparable row" in said
    alone = lab("report", "laptop", "laptop", "laptop", "--fail-on-regression", "nan")
    assert alone.exit_code == Exit.USAGE
