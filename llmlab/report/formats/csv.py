"""CSV: a line per run and cell with raw values; every figure as median, lowest and highest, the unit in its name."""

import csv
from collections.abc import Iterator
from typing import Any, TextIO

from llmlab.cells import FIGURES
from llmlab.report.document import Report
from llmlab.report.rows import Row
from llmlab.report.side import Side, plain

NAMES = (*FIGURES, "ttft_worst_ns", "total_tokens_per_s")
FORMULA = ("=", "+", "-", "@")


def write_csv(report: Report, out: TextIO) -> None:
    """Print a header and the lines; the header also where there is nothing to report."""
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: neutral(v) for k, v in line.items()} for line in _lines(report))


def neutral(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = plain(value, "")
    return f"'{text}" if text.startswith(FORMULA) else text


def _lines(report: Report) -> Iterator[dict[str, Any]]:
    for row in report.rows:
        for side, cell in zip(report.sides, row.cells, strict=True):
            if cell is None:
                continue
            line = {**_run(side), **_row(row)}
            line |= {"n": cell.n, "failed": cell.failed, "refused": cell.refused, "cut": cell.cut}
            line |= {"recalled": cell.recalled, "asked": cell.asked or None, "error": cell.error}
            for name, figure in cell.figures.items():
                line |= {name: figure.median, f"{name}_min": figure.min, f"{name}_max": figure.max}
            yield line


def _run(side: Side) -> dict[str, Any]:
    run, model = side.run, side.model
    return {
        "run_id": run.id,
        "tag": run.tag,
        "started_utc": run.started_utc,
        "machine_id": run.machine_id,
        "machine": side.machine_line,
        "model": model and model.name,
        "digest": model and model.digest,
        "quantization": model and model.quantization,
        "server_kind": run.server_kind,
        "server_version": run.server_version,
        "num_ctx": run.num_ctx,
        "num_ctx_loaded": run.num_ctx_loaded,
        "gpu_share": side.gpu_share,
        "slots": run.slots,
        "noise_floor": side.noise,
        "drift": side.drift,
    }


def _row(row: Row) -> dict[str, Any]:
    experiment, variant, size = row.key
    return {
        "experiment": experiment,
        "variant": variant,
        "size": size,
        "comparable": str(row.mark),
        "why": ", ".join(row.why),
    }


COLUMNS = (
    *("run_id", "tag", "started_utc", "machine_id", "machine", "model", "digest", "quantization", "server_kind"),
    *("server_version", "num_ctx", "num_ctx_loaded", "gpu_share", "slots", "noise_floor", "drift", "experiment"),
    *("variant", "size", "comparable", "why", "n", "failed", "refused", "cut", "recalled", "asked", "error"),
    *(column for name in NAMES for column in (name, f"{name}_min", f"{name}_max")),
)
