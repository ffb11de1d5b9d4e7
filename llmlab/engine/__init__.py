"""The embedded engine: child processes that speak Ollama's API over llama.cpp, so that everything works with pip alone.

`Engine` starts and ends them. Only the children import llama.cpp and the web server.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from llmlab.engine.child import command, detached
from llmlab.engine.progress import Lines, Report, Step, silent
from llmlab.errors import EngineError, one_line

__all__ = ["Engine", "Lines", "Report", "Step", "run_engine"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 11434
STOP_S = 5


class Engine:
    """A running engine: `url` where it listens, `model` the name of its only model.

    Stop it, or use it as a context manager; it also ends by itself with this process, however that ends.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, model: str) -> None:
        self.process = process
        self.url = url
        self.model = model

    @classmethod
    def start(
        cls,
        *,
        gguf: Path | None = None,
        cache: Path | None = None,
        host: str = DEFAULT_HOST,
        port: int = 0,
        num_parallel: int = 4,
        max_queue: int = 512,
        threads: int | None = None,
        num_ctx: int = 4096,
        on_progress: Report = silent,
    ) -> "Engine":
        """Start the engine and return once its model is loaded with a window of `num_ctx`, the one of requests without.

        `gguf` is a model file of one's own; without it the default model is fetched into `cache` (the user's cache
        folder) where it is not there yet. `port` 0 takes a free one; `threads` None is one per core. EngineError says
        why it cannot start; what was begun is then ended.
        """
        if importlib.util.find_spec("xllamacpp") is None:
            raise EngineError("the embedded engine is not installed", 'Run: pip install "llmlab[engine]"')
        path = gguf if gguf is not None else default_weights(cache, on_progress)
        setup = {
            "gguf": str(path.expanduser().absolute()),
            "default": gguf is None,
            "host": host,
            "port": port,
            "num_parallel": num_parallel,
            "max_queue": max_queue,
            "threads": threads,
            "num_ctx": num_ctx,
        }
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command("front"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, **detached()
            )
            try:
                answer = greet(process, setup)
                if "url" not in answer:
                    raise EngineError(answer.get("error") or last_line(errors), answer.get("hint"))
            except BaseException:
                end(process)
                raise
        return cls(process, answer["url"], answer["model"])

    def wait(self) -> None:
        """Return when the engine has ended by itself."""
        self.process.wait()

    def stop(self) -> None:
        """End the engine and all its processes; again and again is fine."""
        end(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def default_weights(cache: Path | None, report: Report) -> Path:
    from llmlab.engine.weights import ensure_weights
    from llmlab.settings import cache_folder

    return ensure_weights(cache or cache_folder(), report)


def greet(process: "subprocess.Popen[bytes]", setup: dict[str, Any]) -> dict[str, Any]:
    """Hand the setup over and wait for the one line that says how it went."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps(setup).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return {}
    line = process.stdout.readline()
    return dict(json.loads(line)) if line else {}


def end(process: "subprocess.Popen[bytes]") -> None:
    """Close the pipe that keeps the engine alive, and wait until it is gone."""
    assert process.stdin and process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def last_line(errors: Any) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return one_line(f"the embedded engine did not start: {lines[-1] if lines else 'it said nothing'}")


def run_engine(
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    gguf: Path | None = None,
    num_parallel: int = 4,
    max_queue: int = 512,
    threads: int | None = None,
    *,
    cache: Path | None = None,
    stream: TextIO | None = None,
) -> None:
    """Serve in the foreground until Ctrl-C, telling `stream` (standard error) what is going on."""
    stream = stream or sys.stderr
    engine = None
    try:
        engine = Engine.start(
            gguf=gguf,
            cache=cache,
            host=host,
            port=port,
            num_parallel=num_parallel,
            max_queue=max_queue,
            threads=threads,
            on_progress=Lines(stream),
        )
        slots = f"{num_parallel} slot{'s' if num_parallel > 1 else ''}"
        print(f"{engine.model} on {engine.url}, {slots}. Ctrl-C ends it.", file=stream, flush=True)
        engine.wait()
        raise EngineError(f"the engine on {engine.url} has ended by itself", "Start it again: llmlab engine")
    except KeyboardInterrupt:
        return
    finally:
        if engine:
            engine.stop()
