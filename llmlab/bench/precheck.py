"""Precheck: what will make this run's figures worse or less comparable, one line each, before anything is measured."""

from llmlab import machine
from llmlab.bench.session import Session
from llmlab.figures import format_percent

BUSY_LOAD = 0.5
"""One-minute load per core from which other programs take part."""
LOW_MEMORY = 0.10
"""Less of the memory than this free: a model may be swapped."""


async def check_machine(session: Session) -> None:
    """Other models in memory, battery, a busy CPU, low memory."""
    loaded = await session.loaded() or []
    others = sorted(m.name for m in loaded if not session.is_ours(m))
    if others:
        session.mark(f"another model is loaded: {', '.join(others)}")
    if session.run.power == "battery":
        session.mark("this computer runs on battery: it may be slower than on mains")
    load = session.run.load_average
    if load is not None and load > BUSY_LOAD:
        session.mark(f"the CPU is busy: {format_percent(load)} before the run")
    memory = machine.memory()
    to_load = 0 if any(map(session.is_ours, loaded)) else session.model.size_bytes or 0
    if memory.available_bytes < max(LOW_MEMORY * memory.total_bytes, to_load):
        session.mark(f"memory is low: {memory.available_bytes / 2**30:.1f} GiB free")


def check_spill(session: Session) -> None:
    """A model that is partly on the GPU and partly not, once it is loaded."""
    size, vram = session.run.size_bytes, session.run.size_vram_bytes
    if size and vram and vram < 0.995 * size:
        session.mark(f"only {format_percent(vram / size)} of the model is on the GPU: the rest slows it down")
