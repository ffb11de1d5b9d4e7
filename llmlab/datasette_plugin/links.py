"""Addresses of the plugin's pages and of the rows behind them."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode


def runs_link(datasette: Any, database: str, **arguments: str) -> str:
    """The start page."""
    query = f"?{urlencode(arguments)}" if arguments else ""
    return f"{datasette.urls.database(database)}/-/runs{query}"


def run_link(datasette: Any, database: str, run_id: str) -> str:
    """The page of one run."""
    return f"{datasette.urls.database(database)}/-/run/{quote(run_id, safe='')}"


def compare_link(datasette: Any, database: str, run_ids: Iterable[str] = ()) -> str:
    """The compare page; without runs, what the form of the start page sends them to."""
    query = urlencode([("run", run_id) for run_id in run_ids])
    return f"{datasette.urls.database(database)}/-/compare{'?' if query else ''}{query}"


def rows_link(datasette: Any, database: str, table: str, run_id: str) -> str:
    """The rows of a run in a table or view."""
    return f"{datasette.urls.table(database, table)}?{urlencode({'run_id': run_id})}"
