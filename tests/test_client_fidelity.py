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
