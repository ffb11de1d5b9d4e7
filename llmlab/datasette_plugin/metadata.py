"""What Datasette says of tables and columns, and what it offers to filter by."""

from typing import Any

from llmlab.store.columns import MEANINGS, PURPOSES

FACETS = {
    "runs": ["command", "tag", "server_kind", "outcome"],
    "calls": ["purpose", "experiment", "outcome", "cut"],
    "call_rates": ["purpose", "experiment", "outcome"],
    "cells": ["experiment", "variant"],
    "models": ["family", "quantization"],
}
NEWEST_FIRST = {"runs": "started_utc", "run_summary": "started_utc"}
LABELS = {"runs": "tag", "models": "name", "machines": "cpu"}


def database_metadata() -> dict[str, Any]:
    """Datasette's metadata of one llmlab database; fresh each time, as Datasette writes the user's own into it."""
    return {
        "description": "Runs and calls of language models, recorded by llmlab. NULL is not reported, which is not 0.",
        "tables": {**{name: _table(name) for name in MEANINGS}, "_sqlite_migrations": {"hidden": True}},
    }


def _table(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"description": PURPOSES[name], "columns": dict(MEANINGS[name])}
    if name in FACETS:
        found["facets"] = FACETS[name]
    if name in NEWEST_FIRST:
        found["sort_desc"] = NEWEST_FIRST[name]
    if name in LABELS:
        found["label_column"] = LABELS[name]
    return found
