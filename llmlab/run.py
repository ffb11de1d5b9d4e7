"""Run: one invocation of a command; one field per column of the table `runs`."""

from dataclasses import asdict, dataclass, field
from typing import Any

from llmlab import __version__
from llmlab.call import new_id, utc_now


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of a command.

    `num_ctx_loaded`, `size_bytes`, `size_vram_bytes` come from Ollama's /api/ps; `slots` by the users experiment;
    `power` is `mains`, `battery` or None; `load_average` is the one-minute load before the run ÷ logical cores;
    `bench_version` is raised whenever prompts or method change; `outcome` is None while it runs, then `ok`, `failed` or
    `interrupted`.
    """

    id: str = field(default_factory=new_id)
    command: str
    tag: str | None = None
    machine_id: str | None = None
    model_id: str | None = None
    server_kind: str | None = None
    server_version: str | None = None
    num_ctx: int | None = None
    num_ctx_loaded: int | None = None
    size_bytes: int | None = None
    size_vram_bytes: int | None = None
    slots: int | None = None
    power: str | None = None
    load_average: float | None = None
    seed: int | None = None
    options_json: str | None = None
    plan_json: str | None = None
    bench_version: int | None = None
    llmlab_version: str = __version__
    started_utc: str = field(default_factory=utc_now)
    finished_utc: str | None = None
    outcome: str | None = None
    findings_json: str | None = None

    def row(self) -> dict[str, Any]:
        """The run as a row of `runs`."""
        return asdict(self)
