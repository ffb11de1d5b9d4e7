"""Side: one run as a report sees it, with its model, its machine and its cells."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmlab.anchors import drift_fraction, is_drifting, noise_floor
from llmlab.call import Call
from llmlab.cells import Cell, cells
from llmlab.errors import one_line
from llmlab.figures import MISSING, ratio
from llmlab.findings import findings
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run

Key = tuple[str, str | None, int | None]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One run of the report.

    `label` tells it from the other sides: its tag, else the end of its id, both where two runs share a tag. `model` and
    `machine` are None where the file does not know them. `calls` need not hold more than measured calls and anchors.
    """

    run: Run
    calls: Sequence[Call]
    model: Model | None
    machine: Machine | None
    label: str

    @cached_property
    def cells(self) -> dict[Key, Cell]:
        return {cell.key: cell for cell in cells(self.calls)}

    @cached_property
    def drift(self) -> float | None:
        return drift_fraction(self.calls)

    @cached_property
    def drifting(self) -> bool:
        """Whether the drift is more than noise."""
        return is_drifting(self.calls)

    @cached_property
    def noise(self) -> float | None:
        return noise_floor(self.calls)

    @cached_property
    def findings(self) -> list[str]:
        return findings(self.calls, self.run)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The settings the run was made with; empty where none were kept."""
        return _parsed(self.run.plan_json)

    @cached_property
    def marks(self) -> list[str]:
        """What the run noted while it measured."""
        found = _parsed(self.run.findings_json).get("marks")
        return [plain(mark) for mark in found] if isinstance(found, list) else []

    @property
    def window(self) -> int | None:
        """The window the server really loaded, as far as is known, else the one asked for."""
        return self.run.num_ctx_loaded or self.run.num_ctx

    @property
    def gpu_share(self) -> float | None:
        """The part of the loaded model that is in GPU memory, 0 to 1; None where the server does not say."""
        return ratio(self.run.size_vram_bytes, self.run.size_bytes)

    @property
    def model_name(self) -> str:
        """The model with its quantization."""
        if self.model is None:
            return MISSING
        return " ".join(filter(None, (plain(self.model.name), plain(self.model.quantization, ""))))

    @property
    def server(self) -> str | None:
        """`ollama 0.12.6`."""
        return " ".join(filter(None, (self.run.server_kind, self.run.server_version))) or None

    @property
    def machine_line(self) -> str:
        """The machine in one line: processor, cores, memory, graphics, system."""
        facts = self.machine
        if facts is None:
            return "unknown machine"
        cores = facts.cores_physical or facts.cores_logical
        parts = [
            plain(facts.cpu, "") or plain(facts.arch, ""),
            f"{cores} core{'' if cores == 1 else 's'}" if cores else "",
            f"{_gib(facts.ram_bytes)} RAM" if facts.ram_bytes else "",
            " ".join(filter(None, (plain(facts.gpu, ""), _gib(facts.gpu_memory_bytes)))),
            " ".join(filter(None, (plain(facts.os, ""), plain(facts.os_version, "")))),
        ]
        return ", ".join(filter(None, parts)) or "unknown machine"


def larger_noise(a: Side, b: Side) -> float:
    """The larger noise floor of two runs; 0 where neither was measured."""
    return max(a.noise or 0, b.noise or 0)


def plain(value: object, missing: str = MISSING) -> str:
    """Text from outside on one line, without control characters; `missing` where there is none."""
    return (one_line(str(value), 1000) if value not in (None, "") else "") or missing


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _gib(size_bytes: int | None) -> str:
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes else ""
