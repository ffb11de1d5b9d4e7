"""The doctor: is this machine fit to measure? One line a check, and what to do about it."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from llmlab import machine
from llmlab.bench.precheck import BUSY_LOAD, LOW_MEMORY
from llmlab.client import Client
from llmlab.errors import Exit, LabError, Unreachable
from llmlab.figures import format_count, format_percent
from llmlab.model import LoadedModel
from llmlab.printable import printable_line
from llmlab.settings import database_path, find_server
from llmlab.store import Store
from llmlab.target import Choice, choose_model, open_server

OK, NOTE, BAD = "ok", "note", "bad"
SERVER_SILENCE_S = 30.0
LAG_SAMPLES, LAG_STEP_S, LAG_LIMIT_S = 150, 0.002, 0.005


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: `level` is ok, note (worth knowing) or bad (figures would suffer)."""

    level: str
    what: str
    says: str


async def doctor(choice: Choice, db: Path | None) -> Exit:
    """Print the checks and whether this machine is fit to measure. Exit 1 where it is not."""
    bad = []
    async for check in checks(choice, db):
        print(f"{check.level:<4}  {check.what:<7}  {printable_line(check.says)}", flush=True)
        if check.level == BAD:
            bad.append(check.what)
    print(f"\nFit to measure: {'no, see ' + ', '.join(bad) if bad else 'yes'}")
    return Exit.FAILED if bad else Exit.OK


async def checks(choice: Choice, db: Path | None) -> AsyncIterator[Check]:
    """Every check in turn; none raises."""
    yield _power()
    yield _load()
    yield _memory()
    yield await _clock()
    yield _store(db)
    try:
        async with _connected(choice) as client:
            async for check in _server(client, choice):
                yield check
    except Unreachable as error:
        yield _nobody(choice, error)
    except LabError as error:
        yield Check(BAD, "server", str(error))


def _connected(choice: Choice) -> AbstractAsyncContextManager[Client]:
    """The server asked for; the embedded engine is started only where it was named."""
    if choice.host == "engine":
        return open_server(choice, _say)
    return Client(find_server(choice.host, choice.api), timeout_s=SERVER_SILENCE_S)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _nobody(choice: Choice, error: Unreachable) -> Check:
    from importlib.util import find_spec

    if choice.host or choice.model or find_server().source != "default":
        return Check(BAD, "server", str(error))
    if find_spec("xllamacpp") is None:
        return Check(BAD, "server", f'{error.what}. Start Ollama, or: pip install "llmlab[engine]"')
    return Check(NOTE, "server", f"{error.what}: chat and bench will start the embedded engine")


async def _server(client: Client, choice: Choice) -> AsyncIterator[Check]:
    facts = await client.server_facts()
    server = client.server
    way = f"by the proxy {server.proxy_shown}" if server.proxy_shown else "directly"
    version = f" {facts.version}" if facts.version else ", version unknown"
    yield Check(OK, "server", f"{facts.kind}{version} at {server.shown} (from {server.source}), reached {way}")
    if await client.api() == "openai":
        yield Check(NOTE, "server", "this wire has no num_ctx and no load time: speeds are seen from outside")
    loaded = await client.loaded()
    model = await choose_model(client, choice.model, _say)
    size = f", {model.size_bytes / 1e9:.1f} GB" if model.size_bytes else ""
    kind = f" {model.quantization}" if model.quantization else ""
    longest = f", window up to {format_count(model.context_length)}" if model.context_length else ""
    yield Check(OK, "model", f"{model.name}{size}{kind}{longest}")
    if model.thinks:
        yield Check(NOTE, "model", f"{model.name} thinks: bench asks it not to, where it can")
    others = [m.name for m in loaded if m.name != model.name]
    if others:
        yield Check(BAD, "model", f"another model is in memory: {', '.join(others)}. Stop it with: ollama stop NAME")
    for mine in loaded:
        if mine.name == model.name:
            yield _spill(mine)


def _spill(loaded: LoadedModel) -> Check:
    window = f"loaded with a window of {format_count(loaded.num_ctx)}"
    size, vram = loaded.size_bytes, loaded.size_vram_bytes
    if not size or vram is None:
        return Check(OK, "memory", window)
    if vram == 0:
        return Check(OK, "memory", f"{window}, all on the CPU")
    if vram < 0.995 * size:
        share = format_percent(vram / size)
        return Check(BAD, "memory", f"{window}, only {share} on the GPU. Use a smaller model or a smaller --num-ctx")
    return Check(OK, "memory", f"{window}, all on the GPU")


def _power() -> Check:
    power = machine.power_source()
    if power == "battery":
        return Check(BAD, "power", "on battery: it may be slower than on mains")
    return Check(OK, "power", power or "no battery seen")


def _load() -> Check:
    load = machine.load_average()
    if load is None:
        return Check(NOTE, "cpu", "this system does not tell its load")
    says = f"{format_percent(load)} busy over the last minute"
    return Check(BAD, "cpu", f"{says}: other programs take part") if load > BUSY_LOAD else Check(OK, "cpu", says)


def _memory() -> Check:
    memory = machine.memory()
    says = f"{memory.available_bytes / 2**30:.1f} of {memory.total_bytes / 2**30:.1f} GiB free"
    low = memory.available_bytes < LOW_MEMORY * memory.total_bytes
    return Check(BAD, "memory", f"{says}: a model may be swapped") if low else Check(OK, "memory", says)


async def _clock() -> Check:
    """How late a timer of 2 ms wakes this process: what the first token of a quick answer could be off by."""
    late = sorted([await _lateness() for _ in range(LAG_SAMPLES)])
    worst = late[int(0.99 * LAG_SAMPLES)]
    resolution = time.get_clock_info("perf_counter").resolution
    says = f"resolution {resolution * 1e9:.0f} ns, timers wake up to {worst * 1e3:.1f} ms late (99 of 100)"
    return Check(NOTE if worst > LAG_LIMIT_S else OK, "clock", says)


async def _lateness() -> float:
    start = time.perf_counter()
    await asyncio.sleep(LAG_STEP_S)
    return time.perf_counter() - start - LAG_STEP_S


def _store(db: Path | None) -> Check:
    path = database_path(db)
    try:
        with Store.open(path) as store:
            (counted,) = store.query("select count(*) as runs from runs")
    except LabError as error:
        return Check(BAD, "store", str(error))
    return Check(OK, "store", f"{path}, {counted['runs']:,} runs")
