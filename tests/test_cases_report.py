"""Faults of comparisons that people met, retold: through `llmlab report` on recorded runs.

The ids are those of the collection of cases; every mark by itself is in test_report_comparable.py.
"""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmlab.model import Model
from tests.lesson_runs import anchors, burst, keep, lesson_run, prompt_call

Q4 = Model(name="demo:latest", digest="aaa", quantization="Q4_K_M")
Q8 = Model(name="demo:latest", digest="bbb", quantization="Q8_0")
RENAMED = Model(name="demo:1b", digest="aaa", quantization="Q4_K_M")
UNKNOWN = Model(name="demo:latest")


def prompts(decode: float = 40.0) -> list[Any]:
    return [replace(prompt_call(100, 130, 1, 130, decode), repeat=n) for n in range(3)]


def recorded(tmp_path: Path, **runs: tuple[list[Any], Model]) -> None:
    for tag, (calls, model) in runs.items():
        keep(tmp_path / "lab.db", lesson_run(1, tag=tag, server_kind="ollama", server_version="0.12"), calls, model)


def marks(lab, *tags: str) -> list[tuple[str, str, str]]:
    """(size, comparable, why) of each line of the csv."""
    out = lab("report", *tags, "--format", "csv").stdout
    return [(line["size"], line["comparable"], line["why"]) for line in csv.DictReader(io.StringIO(out))]


def test_c130_weights_are_told_by_their_digest(lab, tmp_path) -> None:
    recorded(tmp_path, a=(prompts(), Q4), b=(prompts(25), Q8), again=(prompts(44), RENAMED), c=(prompts(31), UNKNOWN))
    assert marks(lab, "a", "again")[0][1:] == ("ok", "")
    assert marks(lab, "a", "b")[0][1:] == ("caution", "different weights")
    assert "weights not known" in marks(lab, "a", "c")[0][2]
    shown = lab("report", "a", "b").stdout
    assert "different weights" in shown and "Q4_K_M" in shown and "Q8_0" in shown


def test_c130_what_decides_a_comparison_is_a_column(lab, tmp_path) -> None:
    recorded(tmp_path, a=(prompts(), Q4), b=(prompts(25), Q8))
    (first, *_) = csv.DictReader(io.StringIO(lab("report", "a", "b", "--format", "csv").stdout))
    assert (first["digest"], first["quantization"], first["server_version"]) == ("aaa", "Q4_K_M", "0.12")
    assert {"num_ctx", "num_ctx_loaded", "gpu_share"} <= set(first)


@pytest.fixture
def unlike(tmp_path: Path) -> None:
    """A and B measured other numbers of users, C failed with all, D has no speed."""
    four = [call for repeat in range(3) for call in burst(4, 1, 80, repeat=repeat)]
    eight, none, still = ([call for repeat in range(3) for call in burst(8, 2, 120, repeat=repeat)] for _ in range(3))
    none = [replace(call, outcome="error", error="down", output_tokens=None) for call in none]
    still = [replace(call, output_tokens=0, decode_ns=None) for call in still]
    recorded(tmp_path, a=(eight, Q4), b=(four, Q4), c=(none, Q4), d=(still, Q4))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (("a", "b"), {("4", "not comparable", "not measured by a"), ("8", "not comparable", "not measured by b")}),
        (("a", "c"), {("8", "not comparable", "nothing good from c")}),
    ],
)
def test_c133_only_what_both_measured_is_compared(lab, unlike, tags, expected) -> None:
    assert set(marks(lab, *tags)) == expected


@pytest.mark.parametrize("tags", [("a", "b"), ("a", "c"), ("c", "a"), ("a", "d"), ("d", "d"), ("a", "b", "c", "d")])
@pytest.mark.parametrize("form", ["table", "md", "csv", "json", "html"])
def test_c133_a_ratio_to_nothing_is_a_dash(lab, unlike, tags, form) -> None:
    result = lab("report", *tags, "--format", form)
    assert result.exit_code == 0
    assert not re.search(r"\b(NaN|nan|inf|Infinity|None)\b", result.stdout)
    if form == "json":
        json.loads(result.stdout)
    elif form in ("table", "md") and tags == ("a", "b"):
        assert re.search(r"– / ", result.stdout) and re.search(r" / –", result.stdout)


def test_c133_failures_are_carried_by_their_row(lab, tmp_path) -> None:
    broken = [*prompts(), replace(prompt_call(100, 130, 1, 130, 40), outcome="timeout", repeat=4)]
    recorded(tmp_path, a=(prompts(), Q4), b=(broken, Q4))
    assert marks(lab, "a", "b")[0][1:] == ("caution", "1 failed")


@pytest.mark.parametrize("form", ["table", "md", "csv", "json", "html"])
def test_c133_an_empty_store_says_so_and_is_no_failure(lab, form) -> None:
    result = lab("report", "--format", form)
    assert result.exit_code == 0
    assert "no bench run" in result.stdout + result.stderr


def test_c131_every_line_has_as_many_cells(lab, tmp_path) -> None:
    evil = "a\\|b\nc <script>alert(1)</script> | [x](javascript:1)"
    recorded(tmp_path, **{"lab|one": (prompts(), Model(name=evil, digest="aaa")), "=cmd()": (prompts(), RENAMED)})
    out = lab("report", "lab|one", "=cmd()", "--format", "md").stdout
    for block in out.split("\n\n"):
        widths = {len(re.split(r"(?<!\\)(?:\\\\)*\|", line)) for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1, block
    assert "<script>" not in out and not re.search(r"(?<!\\)\]\(", out)
    texts = [t for row in csv.reader(io.StringIO(lab("report", "--format", "csv").stdout)) for t in row]
    assert "'=cmd()" in texts


def test_a_clock_that_was_set_back_in_mid_run_changes_no_figure(lab, tmp_path) -> None:
    """Calls are in the order they were made; the calendar only names them."""
    slower = [1.0, 1.1, 1.2, 1.3, 1.4]
    back = [f"2026-01-01T{hour:02}:00:00.000Z" for hour in (12, 11, 10, 9, 8)]
    steady = [
        replace(call, started_utc=f"2026-01-01T{hour:02}:00:00.000Z") for hour, call in enumerate(anchors(slower))
    ]
    jumped = [replace(call, started_utc=when) for when, call in zip(back, anchors(slower), strict=True)]
    recorded(tmp_path, steady=([*steady, *prompts()], Q4), jumped=([*jumped, *prompts()], Q4))
    runs = json.loads(lab("report", "steady", "jumped", "--format", "json").stdout)["runs"]
    drifts = [run["drift"] for run in runs]
    assert drifts[0] == drifts[1] > 0.3
