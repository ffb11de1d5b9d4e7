"""The inventory: which runs the database holds, and which models the server has."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmlab.figures import format_count, format_seconds, format_speed
from llmlab.listing import Format, print_listing
from llmlab.model import LoadedModel, Model
from llmlab.settings import database_path
from llmlab.store import Store
from llmlab.target import Choice, open_server

RUN_COLUMNS = ("run", "when", "command", "tag", "model", "num_ctx", "calls", "first token", "decode", "outcome")
MODEL_COLUMNS = ("model", "size", "parameters", "quantization", "longest window", "loaded", "can")


def list_runs(db: Path | None, command: str | None, tag: str | None, limit: int, form: Format) -> None:
    """Print the newest runs. csv and json hold the whole rows of the view `run_summary`."""
    with Store.read(database_path(db)) as store:
        conditions = "(:command is null or command = :command) and (:tag is null or tag = :tag)"
        sql = f"select * from run_summary where {conditions} order by started_utc desc limit :limit"
        rows = store.query(sql, command=command, tag=tag, limit=limit)
    if not rows and form is Format.table:
        print("no runs yet; measure one with: llmlab bench --tag NAME", file=sys.stderr)
        return
    shown = rows if form is not Format.table else [_run_row(row) for row in rows]
    print_listing(shown, RUN_COLUMNS, form, sys.stdout)


def _run_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run": row["short_id"],
        "when": row["started_utc"][:16].replace("T", " "),
        "command": row["command"],
        "tag": row["tag"],
        "model": row["model"],
        "num_ctx": row["num_ctx"],
        "calls": row["calls"],
        "first token": format_seconds(row["ttft_s"]),
        "decode": format_speed(row["decode_tokens_per_s"]),
        "outcome": row["outcome"] or "unfinished",
    }


async def list_models(choice: Choice, form: Format) -> None:
    """Print the models that the server has, the newest first, and which are in memory."""
    async with open_server(choice, lambda line: print(line, file=sys.stderr)) as client:
        loaded = {m.name: m for m in await client.loaded()}
        models = [await client.model(m.name) for m in await client.models()]
    if form is Format.table:
        rows = [_model_row(model, loaded.get(model.name)) for model in models]
    else:
        rows = [_model_facts(model, loaded.get(model.name)) for model in models]
    print_listing(rows, MODEL_COLUMNS, form, sys.stdout)


def _model_facts(model: Model, loaded: LoadedModel | None) -> dict[str, Any]:
    row = model.row()
    row["capabilities"] = ",".join(model.capabilities or ()) or None
    row["loaded"] = loaded is not None
    row["num_ctx_loaded"] = loaded.num_ctx if loaded else None
    row["size_vram_bytes"] = loaded.size_vram_bytes if loaded else None
    return row


def _model_row(model: Model, loaded: LoadedModel | None) -> dict[str, Any]:
    return {
        "model": model.name,
        "size": format_bytes(model.size_bytes),
        "parameters": model.parameter_size,
        "quantization": model.quantization,
        "longest window": format_count(model.context_length),
        "loaded": _loaded(loaded),
        "can": ", ".join(model.capabilities or ()) or None,
    }


def _loaded(loaded: LoadedModel | None) -> str | None:
    """`window 4,096, 71 % on the GPU`."""
    if loaded is None:
        return None
    parts = [f"window {format_count(loaded.num_ctx)}"] if loaded.num_ctx else ["yes"]
    if loaded.size_bytes and loaded.size_vram_bytes is not None:
        parts.append(f"{loaded.size_vram_bytes / loaded.size_bytes:.0%} on the GPU".replace("%", " %"))
    return ", ".join(parts)


def format_bytes(size_bytes: int | None) -> str | None:
    """`98 MB`, `4.7 GB`."""
    if size_bytes is None:
        return None
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes < 1e9 else f"{size_bytes / 1e9:.1f} GB"
