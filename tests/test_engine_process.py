"""The engine's processes: nothing is left of them, whoever ends, and what cannot start says why in one line."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from engine_captures import harbour, user
from engine_fixture import cache, engine

from llmlab.engine import Engine, default_weights
from llmlab.engine.link import Refused
from llmlab.engine.progress import silent
from llmlab.engine.runner import Runner
from llmlab.errors import EngineError

__all__ = ["engine"]
pytestmark = pytest.mark.engine

DRAGON = [user("Write a very long story about a dragon, at least 2000 words.")]
GONE_S = 10


@pytest.fixture(scope="module")
def weights() -> Path:
    return default_weights(cache(), silent)


@pytest.fixture(scope="module")
def single(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with one slot over a file as Ollama keeps it: named by its hash, with its own template."""
    blob = tmp_path_factory.mktemp("blobs") / "sha256-b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    blob.symlink_to(weights)
    with Engine.start(gguf=blob, num_parallel=1, threads=1, num_ctx=8192) as running:
        yield running


@contextlib.contextmanager
def asked(engine: Engine, messages: list[dict[str, Any]], num_predict: int) -> Iterator[Iterator[str]]:
    """The lines of a streaming answer; leaving closes the connection."""
    body = {"model": engine.model, "messages": messages, "options": {"num_predict": num_predict, "temperature": 0}}
    with httpx.stream("POST", f"{engine.url}/api/chat", json=body, trust_env=False, timeout=60) as response:
        yield response.iter_lines()


def children(pid: int) -> list[psutil.Process]:
    return list(psutil.Process(pid).children(recursive=True))


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=GONE_S)[1]


def test_a_file_of_ones_own_has_its_own_name_and_template(single: Engine) -> None:
    assert single.model == "smollm2-135m-8k-lc100k-mix1-ep2:latest"
    (tag,) = httpx.get(f"{single.url}/api/tags", trust_env=False).json()["models"]
    assert tag["digest"].startswith("b179c952")
    with asked(single, [user("Name three primary colours.")], 1) as lines:
        done = json.loads(list(lines)[-1])
    assert done["prompt_eval_count"] == 35  # 21 more than plain ChatML: the template's own system message


def test_a_client_that_leaves_while_the_answer_comes_frees_the_slot(single: Engine) -> None:
    """Else the only slot would be held for 80,000 tokens."""
    with asked(single, DRAGON, 1_000_000) as lines:
        next(lines)
    with asked(single, [user("hi")], 1) as lines:
        assert json.loads(list(lines)[-1])["done"]


def test_a_client_that_leaves_while_the_prompt_is_read_frees_the_slot(single: Engine) -> None:
    """Else the only slot would be held for some 7,000 tokens of prompt, which one thread reads in a minute."""
    body = {"model": single.model, "messages": [user(harbour(0, 240))]}
    host, port = single.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        content = json.dumps(body).encode()
        head = f"POST /api/chat HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        raw.sendall(head + content)
        # Another request's answer comes after ours has reached the engine.
        assert httpx.get(f"{single.url}/api/ps", trust_env=False).json()["models"]
    with asked(single, [user("hi")], 1) as lines:
        assert json.loads(list(lines)[-1])["done"]


async def test_a_prompt_that_is_given_up_is_not_read_to_its_end(weights: Path) -> None:
    runner = await Runner.start(gguf=str(weights), n_ctx=1024, slots=1, threads=1, template=None)
    try:
        body = {"prompt": harbour(0, 24), "n_predict": 1, "stream": True, "return_progress": True}
        first = runner.link.events("/completion", body)
        async for event in first:
            if event["prompt_progress"]["processed"] > 0:
                break
        await first.aclose()
        again = runner.link.events("/completion", body)
        progress = (await anext(again))["prompt_progress"]
        await again.aclose()
        assert progress["total"] > 640
        assert progress["cache"] < 512
        with pytest.raises(Refused) as refused:
            await runner.link.ask("/completion", {"prompt": harbour(0, 200)})
        assert (refused.value.status, refused.value.error["n_ctx"]) == (400, 1024)
    finally:
        await runner.stop()
    assert runner.process.returncode is not None and not runner.alive


def test_a_worker_that_dies_in_mid_answer_is_an_error_line_and_then_replaced(engine: Engine) -> None:
    with asked(engine, DRAGON, 1_000) as lines:
        next(lines)
        (worker,) = children(engine.process.pid)
        worker.kill()
        *_, last = lines
    assert json.loads(last) == {"error": "an error was encountered while running the model: unexpected EOF"}
    with asked(engine, [user("hi")], 1) as lines:
        assert json.loads(list(lines)[-1])["load_duration"] > 10_000_000


def test_stop_leaves_nothing_even_in_mid_answer(weights: Path) -> None:
    running = Engine.start(cache=cache(), num_parallel=1, threads=1, num_ctx=256)
    processes = [psutil.Process(running.process.pid), *children(running.process.pid)]
    assert len(processes) == 2
    with asked(running, DRAGON, 1_000) as lines:
        next(lines)
        running.stop()
        running.stop()
        assert all_gone(processes)
        rest: list[Any] = []
        with contextlib.suppress(httpx.RemoteProtocolError):
            rest.extend(lines)
    assert not any(json.loads(line).get("done") for line in rest)  # cut, or an error line: never a short success


PARENT = """
import sys
from pathlib import Path
from llmlab.engine import Engine
engine = Engine.start(cache=Path(sys.argv[1]), num_parallel=1, threads=1, num_ctx=256)
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_leaves_nothing(weights: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(weights.parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout and parent.stdout.readline() == b"up\n"
        processes = children(parent.pid)
        assert len(processes) == 2
        parent.kill()
        assert all_gone(processes)


FOREGROUND = """
import sys
from pathlib import Path
from llmlab.engine import run_engine
run_engine(port=int(sys.argv[2]), num_parallel=1, threads=1, cache=Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for a process group")
def test_ctrl_c_ends_the_foreground_engine_quietly(weights: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, str(weights.parent), "0"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with parent:
        assert parent.stderr
        said = parent.stderr.readline()
        assert said.startswith("smollm2:135m on http://127.0.0.1:") and "Ctrl-C" in said
        processes = children(parent.pid)
        os.killpg(parent.pid, signal.SIGINT)
        assert all_gone(processes)
        assert parent.stderr.read() == ""
        assert parent.wait() == 0


def test_a_taken_port_is_refused(weights: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            Engine.start(cache=cache(), port=port)
    assert "Another server" in str(caught.value.hint)
    assert caught.value.exit_code == 3


def test_a_host_that_is_not_ours_is_refused(weights: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot listen on 192\.0\.2\.1:0"):
        Engine.start(cache=cache(), host="192.0.2.1")


def test_a_file_that_is_no_model_says_so(tmp_path: Path, weights: Path) -> None:
    no_model = tmp_path / "notes.gguf"
    no_model.write_text("these are notes")
    with pytest.raises(EngineError, match="is not a GGUF file"):
        Engine.start(gguf=no_model)
    half = tmp_path / "half.gguf"
    with weights.open("rb") as whole:
        half.write_bytes(whole.read(5_000_000))
    with pytest.raises(EngineError, match="model is corrupted or incomplete") as caught:
        Engine.start(gguf=half)
    assert "\n" not in str(caught.value) and str(half) in caught.value.what


def test_without_llama_cpp_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError) as caught:
        Engine.start()
    assert caught.value.hint == 'Run: pip install "llmlab[engine]"'


def test_a_library_that_llama_cpp_misses_is_named(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "xllamacpp"
    fake.mkdir()
    (fake / "__init__.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"llama.cpp cannot be used here: libgomp\.so\.1") as caught:
        Engine.start(cache=cache())
    assert "apt install libgomp1" in str(caught.value.hint)


def test_importing_the_engine_is_cheap() -> None:
    heavy = ("xllamacpp", "fastapi", "uvicorn", "httptools", "psutil", "platformdirs", "asyncio", "httpx")
    code = f"import sys, llmlab.engine; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_many_leave_while_they_wait(single: Engine) -> None:
    """Requests that wait for a slot and are given up leave nothing behind."""
    async with httpx.AsyncClient(base_url=single.url, trust_env=False, timeout=60) as http:
        body = {"model": single.model, "messages": DRAGON, "options": {"num_predict": 20, "temperature": 0}}
        calls = [asyncio.create_task(http.post("/api/chat", json=body)) for _ in range(8)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        last = await http.post("/api/chat", json=body)
        assert json.loads(last.text.splitlines()[-1])["eval_count"] == 20
