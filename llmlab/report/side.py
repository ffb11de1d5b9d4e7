"""Side: one run as a report sees it, with its model, its machine and its cells."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmlab.anchors import drift_fraction, noise_floor
from llmlab.call import Call
from llmlab.cells import Cell, cells
from llmlab.errors import one_line
from llmlab.figures import MISSING, ratio
from llmlab.findings import findings
from llmlab.run import Run

Key = tuple[str, str | None, int | None]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One run of the report.

    `label` tells it from the other sides: its tag, else the end of its id, both where two runs share a tag. `model` and
    `machine` are the rows of `models` and `machines`, empty where the file has none. `calls` need not hold more than
    the measured calls and the anchors.
    """

    run: Run
    calls: Sequence[Call]
    model: Mapping[str, Any]
    machine: Mapping[str, Any]
    label: str

    @cached_property
    def cells(self) -> dict[Key, Cell]:
        return {cell.key: cell for cell in cells(self.calls)}

    @cached_property
    def drift(self) -> float | None:
        return drift_fraction(self.calls)

    @cached_property
    def noise(self) -> float | None:
        return noise_floor(self.calls)

    @cached_property
    def findings(self) -> list[str]:
        return findings(self.calls, self.run)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options the run was started with; empty where none were kept."""
        try:
            found = json.loads(self.run.options_json or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

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
        return plain(self.model.get("name"))

    @property
    def machine_line(self) -> str:
        """The machine in one line: processor, cores, memory, graphics, system."""
        facts = self.machine
        cores = facts.get("cores_physical") or facts.get("cores_logical")
        parts = [
            plain(facts.get("cpu"), "") or plain(facts.get("arch"), ""),
            f"{cores} core{'' if cores == 1 else 's'}" if cores else "",
            f"{_gib(facts['ram_bytes'])} RAM" if facts.get("ram_bytes") else "",
            " ".join(filter(None, (plain(facts.get("gpu"), ""), _gib(facts.get("gpu_memory_bytes"))))),
            " ".join(filter(None, (plain(facts.get("os"), ""), plain(facts.get("os_version"), "")))),
        ]
        return ", ".join(filter(None, parts)) or "unknown machine"


def plain(value: object, missing: str = MISSING) -> str:
    """Text from outside on one line, without control characters; `missing` where there is none."""
    return (one_line(str(value), 1000) if value not in (None, "") else "") or missing


def _gib(size_bytes: int | None) -> str:
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes else ""
