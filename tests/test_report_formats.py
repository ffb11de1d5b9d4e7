"""Formats: what is pasted, parsed or piped is whole, and nothing that comes from outside gets out of its cell."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab
from lesson_runs import keep, lesson_calls, lesson_run, overflow_call, prompt_call

from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.report.document import Report
from llmlab.report.formats import FORMATS
from llmlab.report.selection import select
from llmlab.store import Store

EVIL = '=cmd()|\\ [x](javascript:1)\n<script>alert("1")</script>\x1b[31m`@'


@pytest.fixture
def lesson(tmp_path: Path) -> None:
    for number in (1, 2):
        keep(tmp_path / "lab.db", lesson_run(number), lesson_calls(number), Model(name="qwen2.5:3b", digest="aaa"))


@pytest.fixture
def evil(tmp_path: Path) -> None:
    """Two runs in which everything that others chose the text of is hostile."""
    for name in "ab":
        run = lesson_run(1, tag=EVIL + name, server_kind=EVIL, server_version=EVIL)
        model = Model(name=EVIL, digest=EVIL + name, quantization=EVIL)
        calls = [*lesson_calls(1), prompt_call(5, 5, 1, 1, 1, outcome="error", error=EVIL, flags=EVIL)]
        keep(
            tmp_path / "lab.db",
            run,
            [*calls, prompt_call(6, 6, 1, 1, 1, flags=EVIL)],
            model,
            Machine(id=name, cpu=EVIL),
        )


def table_rows(markdown: str) -> list[list[str]]:
    return [re.split(r"(?<!\\)\|", line) for line in markdown.splitlines() if line.startswith("|")]


def test_markdown_is_tables_with_the_machines_on_top(lab: Lab, lesson: None) -> None:
    out = lab("report", "--format", "md").stdout
    assert out.startswith("- first (")
    assert "Testing CPU, 2 cores, Linux" in out.splitlines()[0]
    assert "| 100 | 130 | 7 s / 5 s | 19 / 28 | 8.6 / 4.3 | 1 |" in out
    assert "\n### Shape" in out and not out.endswith("\n\n")


def test_markdown_keeps_what_is_hostile_in_its_cell(lab: Lab, evil: None) -> None:
    out = lab("report", "--format", "md").stdout
    widths: list[int] = []
    for block in out.split("\n\n"):
        if rows := table_rows(block):
            assert len({len(row) for row in rows}) == 1, block
            widths.append(len(rows[0]))
    assert len(widths) >= 5
    assert "<script>" not in out and "&lt;script&gt;" in out
    assert not re.search(r"(?<!\\)\]\(", out)
    assert "\x1b" not in out


def test_csv_has_raw_values_and_units_in_its_names(lab: Lab, lesson: None) -> None:
    result = lab("report", "--format", "csv")
    assert result.stderr == ""
    lines = list(csv.DictReader(io.StringIO(result.stdout)))
    first = next(line for line in lines if (line["experiment"], line["size"]) == ("prompt_length", "100"))
    assert float(first["ttft_ns"]) == 7_000_000_000
    assert float(first["prefill_tokens_per_s"]) == pytest.approx(19)
    assert (first["tag"], first["n"], first["comparable"], first["why"]) == ("first", "1", "caution", "n = 1")
    assert {"num_ctx", "num_ctx_loaded", "server_version", "quantization", "gpu_share", "digest"} <= set(first)
    assert len(lines) == 2 * 9


def test_csv_runs_no_formula(lab: Lab, evil: None) -> None:
    out = lab("report", "--format", "csv").stdout
    lines = list(csv.reader(io.StringIO(out)))
    assert len({len(line) for line in lines}) == 1
    texts = [text for line in lines for text in line if not re.fullmatch(r"-?[\d.e+]*", text)]
    assert any(text.startswith("'=cmd()") for text in texts)
    assert not [text for text in texts if text.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert "\x1b" not in out


def test_json_has_its_form(lab: Lab, lesson: None) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(lab("report", "--format", "json").stdout, parse_constant=no_constant)
    assert list(found) == ["format", "runs", "differences", "experiments", "shape", "predictions"]
    assert found["format"] == 1
    ids = [run["id"] for run in found["runs"]]
    assert list(found["experiments"]) == ["prompt_length", "repeat_prompt", "users"]
    row = found["experiments"]["prompt_length"][0]
    assert (row["variant"], row["size"], row["comparable"], row["why"]) == (None, 100, "caution", ["n = 1"])
    assert list(row["runs"]) == ids
    cell = row["runs"][ids[0]]
    assert cell["n"] == 1
    wait_ns = 7_000_000_000
    assert cell["ttft_ns"] == {"median": wait_ns, "min": wait_ns, "max": wait_ns, "samples": [wait_ns]}
    assert all(set(entry["runs"]) == set(ids) for entry in (*found["shape"], *found["predictions"]))


def test_json_of_figures_that_break_is_still_json(tmp_path: Path, lab: Lab) -> None:
    calls = [
        prompt_call(100, 0, 0, 19, 8, prefill_ns=0, decode_ns=0, output_tokens=0, last_piece_ns=0),
        prompt_call(1000, 0, 0, 19, 8, prompt_tokens=None, ttft_ns=None, output_tokens=None),
        overflow_call(2, "no_budget", None, ttft_ns=0),
    ]
    for tag in "ab":
        keep(tmp_path / "lab.db", lesson_run(1, tag=tag, size_bytes=0, size_vram_bytes=0), calls)
    for form in ("json", "table", "md", "csv"):
        result = lab("report", "a", "b", "--format", form)
        assert result.exit_code == 0
        assert not re.search(r"\b(nan|inf)\b", result.stdout, re.IGNORECASE)


def test_a_pipe_gets_every_word_however_narrow_the_terminal(lab: Lab, tmp_path: Path) -> None:
    name = "hf.example/some-very-long-organisation/some-very-long-model-name-GGUF:Q4_K_M"
    for tag in "ab":
        keep(tmp_path / "lab.db", lesson_run(1, tag=tag * 60), lesson_calls(1), Model(name=name + tag, digest=tag))
    out = lab("report", env={"COLUMNS": "40", "FORCE_COLOR": "1"}).stdout
    for tag in "ab":
        assert sum(name + tag in line for line in out.splitlines()) == 2
        assert any(line.startswith("Prompt length") and tag * 60 in line for line in out.splitlines())
    assert "\x1b" not in out and "…" not in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    with Store.read(tmp_path / "lab.db") as store:
        FORMATS["table"](Report.of(select(store, [])), out)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_gets_colour_and_tables_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lesson: None, width: int
) -> None:
    out = on_terminal(tmp_path, monkeypatch, width)
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert plain != out
    assert max(map(len, plain.splitlines())) <= width
    assert "194 s / 127 s" in plain and "8.6 / 4.3" in plain and "…" not in plain


def test_a_terminal_is_not_given_the_escapes_and_markup_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: None
) -> None:
    out = on_terminal(tmp_path, monkeypatch, 200)
    assert "\x1b[31m`" not in out
    assert "[x](javascript:1)" in re.sub(r"\x1b\[[\d;]*m", "", out)


def test_every_number_of_json_is_finite(lab: Lab, lesson: None) -> None:
    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [n for v in value.values() for n in numbers(v)]
        if isinstance(value, list):
            return [n for v in value for n in numbers(v)]
        return [value] if isinstance(value, float) else []

    found = numbers(json.loads(lab("report", "--format", "json").stdout))
    assert len(found) > 100 and all(map(math.isfinite, found))
