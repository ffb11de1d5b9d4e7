"""The benchmark of the client runs, on both wires, and loses nothing; its figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "client_fidelity.py"


@pytest.mark.parametrize("wire", ["ollama", "openai"])
def test_the_benchmark_measures_the_client_beside_the_floor(wire: str) -> None:
    options = ["--streams", "2", "--tokens", "5", "--rate", "500", "--ttft-ms", "5", "--wire", wire]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--clients", "floor,llmlab,pieces", *options],
        capture_output=True,
        text=True,
        check=True,
    )
    *table, report = done.stdout.strip().split("\n")
    rows = json.loads(report)["rows"]
    assert [(row["client"], row["lost"]) for row in rows] == [("floor", 0), ("llmlab", 0), ("pieces", 0)]
    assert all(row["cpu_us_per_token"] > 0 and row["ttft_error_ms"]["p99"] < 5_000 for row in rows)
    assert len(table) == 5


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        ("nothing", "nothing is not a tool that can be measured; these can: guidellm, aiperf"),
        ("/nowhere/guidellm", "/nowhere/guidellm is not installed; install guidellm or give the path of its program"),
    ],
)
def test_a_tool_that_is_not_there_is_one_line(peer: str, said: str) -> None:
    options = ["--streams", "1", "--tokens", "2", "--clients", "floor", "--peer", peer]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (1, said)


def test_a_tool_that_fails_is_said_and_left_out(tmp_path: Path) -> None:
    tool = tmp_path / "aiperf"
    tool.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 0.0.1 && exit\necho "Error: no such hub" >&2\nexit 3\n')
    tool.chmod(0o755)
    options = ["--streams", "1", "--tokens", "2", "--clients", "floor", "--peer", str(tool)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "1 streams: aiperf failed with exit code 3: Error: no such hub"
    assert [row["client"] for row in json.loads(done.stdout.splitlines()[-1])["rows"]] == ["floor"]
