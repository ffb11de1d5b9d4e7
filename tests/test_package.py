"""The wheel: what is in it, and that it works from an empty folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llmlab import __version__

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_migrations_pages_and_nothing_else_at_the_top(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "llmlab/migrations/migrations.py" in names
    assert "llmlab/serve/static/index.html" in names
    assert "llmlab/report/charts.css" in names
    assert {name.split("/")[0] for name in names} == {"llmlab", f"llmlab-{__version__}.dist-info"}
    assert not [name for name in names if name.endswith((".db", ".gguf", ".so", ".pyc"))]


def test_an_installed_wheel_works_from_an_empty_folder(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    env = {**os.environ, "PYTHONPATH": str(site), "LLMLAB_DB": str(tmp_path / "new.db")}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *args], cwd=empty, env=env, capture_output=True, text=True, check=True)

    assert str(site) in run("-c", "import llmlab; print(llmlab.__file__)").stdout
    assert run("-m", "llmlab", "--version").stdout == f"llmlab {__version__}\n"
    code = "from llmlab.store import Store; from pathlib import Path; Store.open(Path('made.db')).close()"
    run("-c", code)
    assert "no bench run" in run("-m", "llmlab", "report", "--db", "made.db").stdout
    assert list(empty.iterdir()) == [empty / "made.db"]


def test_version_and_changelog_agree():
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
