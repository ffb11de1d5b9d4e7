"""Faults of benches that people met, retold: proxies that hold back, windows that shrink, answers that are none.

The ids are those of the collection of cases; what else a bench must get right is in test_bench.py.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from llmlab.bench import BenchOptions, run_bench
from llmlab.call import has_flag
from llmlab.client import Client
from llmlab.fake import FakeServer, Figures
from llmlab.settings import find_server
from tests.bench_runs import FAST, SMALL, bench, bench_of, done, opened

MS = 1_000_000


@asynccontextmanager
async def holding_back(url: str) -> AsyncIterator[str]:
    """A proxy that passes each stream on when it has all of it."""
    parts = urlsplit(url)

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(parts.hostname, parts.port)

        async def ask() -> None:
            while data := await client.read(65536):
                to_server.write(data)
            to_server.close()

        async def answer() -> None:
            held = b""
            while data := await server.read(65536):
                held += data
                if b"chunked" not in held.lower() or held.endswith(b"0\r\n\r\n"):
                    to_client.write(held)
                    held = b""
            to_client.close()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(ask(), answer())

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def test_c44_first_tokens_behind_a_proxy_that_holds_back_are_not_compared(tmp_path: Path) -> None:
    figures = Figures(prefill_tokens_per_s=4_000, decode_gap_ns=8 * MS)
    asked = BenchOptions(**{**SMALL, "experiments": ("prompt_length",), "sizes": (100, 300), "keep_text": True})
    with FakeServer(figures) as fake, opened(tmp_path / "lab.db") as store:
        async with holding_back(fake.url) as url, Client(find_server(url, "auto", {})) as client:
            out, err = io.StringIO(), io.StringIO()
            run = await run_bench(asked, await bench_of(client, store, fake.model, out, err))
        found = done(fake, store, run, out, err)
    calls = found.measured("prompt_length")
    assert calls and all(has_flag(call, "buffered") for call in calls)
    assert all((call.ttft_ns or 0) > 100 * MS for call in calls), "what was seen is kept"
    for cell in found.cells("prompt_length"):
        assert cell.median("ttft_ns") is None and cell.median("user_tokens_per_s") is None
        assert cell.median("decode_tokens_per_s") == pytest.approx(1e9 / (8 * MS), rel=0.1)
        assert cell.median("prefill_tokens_per_s") == pytest.approx(4_000, rel=0.2)
    assert found.out.count("stream held back by a proxy: no first token") == 2


@pytest.mark.parametrize("fault", ["no_done", "die", "error_line"])
async def test_c07_an_answer_that_broke_off_is_a_failure_and_no_sample(tmp_path: Path, fault: str) -> None:
    """Calls 0 to 3 are the warm-up and the first anchor."""
    run = await bench(tmp_path, Figures(**FAST, faults={4: fault}), "prompt_length", sizes=(100,))
    cell = run.cell("prompt_length")
    assert (cell.n, cell.failed) == (1, 1)
    broken, good = run.measured("prompt_length")
    assert (broken.outcome, good.outcome) in (("incomplete", "ok"), ("error", "ok"))
    assert broken.decode_tokens_per_s is None and broken.pieces > 0
    assert cell.median("ttft_ns") == good.ttft_ns
    assert "1 failed: " in run.out


async def test_c67_a_window_that_is_smaller_beside_others_is_seen_and_not_compared(tmp_path: Path) -> None:
    """An old server that splits its window among the users, and cuts without a word."""
    figures = Figures(**FAST, slots=4, window_busy=30, honours_truncate=False)
    run = await bench(tmp_path, figures, "users", users=(1, 4))
    alone, crowd = run.cells("users")
    assert (alone.cut, crowd.cut) == (None, "suspected")
    cut = [call for call in run.measured("users") if call.cut]
    assert len(cut) >= 2 and all("read 17 of about" in (call.cut_evidence or "") for call in cut)
    assert run.out.count("window smaller under load") == 1
    assert run.requests.count("GET /api/ps") >= 3, "what is loaded is read again after each burst"


async def test_c67_users_of_a_window_that_holds_are_not_suspected(tmp_path: Path) -> None:
    run = await bench(tmp_path, Figures(**FAST, slots=4), "users", users=(1, 4))
    assert {call.cut for call in run.measured("users")} == {None}


@pytest.mark.parametrize("repeat", [1, 5])
async def test_c64_prefill_does_not_depend_on_how_often_it_is_measured(tmp_path: Path, repeat: int) -> None:
    figures = Figures(prefill_tokens_per_s=5_000, decode_gap_ns=MS)
    run = await bench(tmp_path, figures, "prompt_length", sizes=(300,), repeat=repeat)
    cell = run.cell("prompt_length")
    assert cell.n == repeat
    assert cell.median("prefill_tokens_per_s") == pytest.approx(5_000, rel=0.1)
