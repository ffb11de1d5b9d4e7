"""What the tests share: the command line in this process, with a store and a data folder of its own."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from asking import Reading
from typer.testing import CliRunner, Result

from llmlab.cli import app
from llmlab.fake import FakeServer, Figures

Lab = Callable[..., Result]

# The same examples each time, and none of them judged by how busy the machine is; `--hypothesis-profile=long` looks on.
for profile, examples, same in (("suite", 60, True), ("long", 20_000, False)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        derandomize=same,
        deadline=None,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run side by side, those on the real model stay in one process: two models would slow each other."""
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.xdist_group("engine"))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the person's own files, servers or keys."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LLMLAB_DB", str(tmp_path / "lab.db"))
    for name in ("OLLAMA_HOST", "LLMLAB_MODEL", "LLMLAB_TAG", "LLMLAB_API_KEY", "LLMLAB_SERVE_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(params=["piece by piece", "as a whole"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chat of the test is read both ways: what is recorded must be the same."""
    monkeypatch.setattr(Reading, "as_a_whole", request.param == "as a whole")


@pytest.fixture
def lab() -> Lab:
    """`lab("chat", "hi", stdin=…)` runs the real command line and gives exit code, stdout and stderr."""

    def run(*args: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, list(args), input=stdin, env=env, catch_exceptions=False, prog_name="llmlab")

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """`rows("select …")` reads the test's database."""

    def read(sql: str) -> list[dict[str, Any]]:
        connection = sqlite3.connect(tmp_path / "lab.db")
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(sql)]
        finally:
            connection.close()

    return read


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A quick fake server with default figures."""
    with FakeServer(Figures(decode_gap_ns=1_000_000, prefill_tokens_per_s=100_000)) as server:
        yield server
