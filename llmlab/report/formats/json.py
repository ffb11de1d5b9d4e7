"""JSON, form 1: the whole report with every sample, for programs."""

from dataclasses import asdict
from typing import Any, TextIO

from llmlab.cells import Cell
from llmlab.figures import Figure
from llmlab.printable import json_text
from llmlab.report.document import Report
from llmlab.report.facts import Fact
from llmlab.report.predictions import Guess, Prediction
from llmlab.report.rows import Row, experiment_rows
from llmlab.report.shape import Series, Trait
from llmlab.report.side import Side
from llmlab.report.verdict import Verdict


def write_json(report: Report, out: TextIO) -> None:
    """Print the report as one JSON document."""
    out.write(json_text(as_json(report), indent=1) + "\n")


def as_json(report: Report) -> dict[str, Any]:
    """The report in plain types; what is not known is null or not there, never NaN."""
    ids = [side.run.id for side in report.sides]
    experiments = experiment_rows(report.rows).items()
    return {
        "format": 1,
        "runs": [_run(side) for side in report.sides],
        "differences": [_difference(fact, ids) for fact in report.differences],
        "experiments": {name: [_row(row, ids) for row in rows] for name, rows in experiments},
        "shape": [
            *(_series(series, ids) for series in report.shape.series),
            *(_trait(trait, ids) for trait in report.shape.traits),
        ],
        "predictions": [_prediction(prediction, ids) for prediction in report.predictions],
    }


def _run(side: Side) -> dict[str, Any]:
    run = side.run.row()
    left_out = ("options_json", "plan_json", "findings_json")
    return {
        **{k: v for k, v in run.items() if k not in left_out},
        "model": asdict(side.model) if side.model else None,
        "machine": asdict(side.machine) if side.machine else None,
        "gpu_share": side.gpu_share,
        "noise_floor": side.noise,
        "drift": side.drift,
        "findings": side.findings,
        "marks": side.marks,
    }


def _difference(fact: Fact, ids: list[str]) -> dict[str, Any]:
    return {
        "name": fact.name,
        "runs": dict(zip(ids, fact.values, strict=True)),
        "comparable": str(fact.mark),
        "why": fact.why or None,
        "experiments": list(fact.experiments),
    }


def _row(row: Row, ids: list[str]) -> dict[str, Any]:
    _, variant, size = row.key
    return {
        "variant": variant,
        "size": size,
        "runs": {run_id: _cell(cell) for run_id, cell in zip(ids, row.cells, strict=True) if cell},
        "comparable": str(row.mark),
        "why": list(row.why),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "n": cell.n,
        "failed": cell.failed,
        "refused": cell.refused,
        "error": cell.error,
        "cut": cell.cut,
        "reloaded": cell.reloaded,
        "flags": dict(cell.flags),
        "recalled": cell.recalled,
        "asked": cell.asked,
        "reasons": list(cell.reasons),
        "staircase_ns": list(cell.staircase_ns),
        **{name: _figure(figure) for name, figure in cell.figures.items()},
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {"median": figure.median, "min": figure.min, "max": figure.max, "samples": list(figure.samples)}


def _series(series: Series, ids: list[str]) -> dict[str, Any]:
    return {
        "experiment": series.experiment,
        "name": series.figure,
        "sizes": list(series.sizes),
        "runs": {run_id: list(values) for run_id, values in zip(ids, series.relative, strict=True)},
        "verdicts": _verdicts(series.verdicts, ids),
    }


def _trait(trait: Trait, ids: list[str]) -> dict[str, Any]:
    return {
        "name": trait.name,
        "runs": dict(zip(ids, trait.values, strict=True)),
        "verdicts": _verdicts(trait.verdicts, ids),
    }


def _verdicts(verdicts: tuple[Verdict | None, ...], ids: list[str]) -> dict[str, Any]:
    return {
        run_id: {"verdict": verdict.word, "n": verdict.n}
        for run_id, verdict in zip(ids, verdicts, strict=True)
        if verdict
    }


def _prediction(prediction: Prediction, ids: list[str]) -> dict[str, Any]:
    return {
        "name": prediction.name,
        "tokens": prediction.tokens,
        "runs": {run_id: _guess(guess) for run_id, guess in zip(ids, prediction.guesses, strict=True)},
    }


def _guess(guess: Guess | None) -> dict[str, Any] | None:
    return None if guess is None else {"value": guess.value, "bound": guess.bound}
