"""The Datasette plugin: pages of runs to tick and compare, on every attached file that is llmlab's, and on no other."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from datasette import hookimpl

from llmlab.datasette_plugin.attached import lab_names, remember, stale_wal
from llmlab.datasette_plugin.links import run_link, runs_link
from llmlab.datasette_plugin.metadata import database_metadata
from llmlab.datasette_plugin.queries import QUERIES

STYLES = "/-/static-plugins/llmlab/rows.css"
Asgi = Callable[..., Awaitable[None]]
F = TypeVar("F", bound=Callable[..., Any])


def _hook(function: F) -> F:
    """Datasette's mark, with the type of what it marks."""
    hookimpl(function)
    return function


@_hook
async def startup(datasette: Any) -> None:
    """Find out which files are llmlab's; warn of rows that an immutable file hides."""
    await remember(datasette)
    for path in stale_wal(datasette):
        print(
            f"llmlab: {path} is open as immutable, but rows wait in its -wal file and are not shown. "
            f"Open it with: llmlab browse --db {path}",
            file=sys.stderr,
        )


@_hook
def register_routes() -> list[tuple[str, Callable[..., Any]]]:
    from llmlab.datasette_plugin.pages import compare_page, run_page, runs_page

    return [
        (r"^/(?P<database>[^/]+)/-/runs$", runs_page),
        (r"^/(?P<database>[^/]+)/-/compare$", compare_page),
        (r"^/(?P<database>[^/]+)/-/run/(?P<run>[^/]+)$", run_page),
    ]


@_hook
def asgi_wrapper(datasette: Any) -> Callable[[Asgi], Asgi]:
    """Where there is nothing but one llmlab file, its runs are what `/` shows."""

    def wrap(app: Asgi) -> Asgi:
        async def first_page(scope: dict[str, Any], receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == datasette.urls.instance() and not scope["query_string"]:
                await remember(datasette)
                names = lab_names(datasette)
                if len(names) == 1 and set(datasette.databases) - {"_internal"} == names:
                    from datasette import Response

                    await Response.redirect(runs_link(datasette, *names)).asgi_send(send)
                    return
            await app(scope, receive, send)

        return first_page

    return wrap


@_hook
def get_metadata(datasette: Any) -> dict[str, Any]:
    return {"databases": {name: database_metadata() for name in lab_names(datasette)}}


@_hook
async def canned_queries(datasette: Any, database: str) -> dict[str, Any]:
    await remember(datasette)
    return {name: dict(query) for name, query in QUERIES.items()} if database in lab_names(datasette) else {}


@_hook
def extra_css_urls(datasette: Any, database: str | None, table: str | None) -> list[str]:
    return [STYLES] if table and database in lab_names(datasette) else []


@_hook
def menu_links(datasette: Any) -> list[dict[str, str]]:
    names = sorted(lab_names(datasette))
    label = "llmlab runs" if len(names) == 1 else "llmlab runs: {}"
    return [{"href": runs_link(datasette, name), "label": label.format(name)} for name in names]


@_hook
def database_actions(datasette: Any, database: str) -> list[dict[str, str]]:
    if database not in lab_names(datasette):
        return []
    return [{"href": runs_link(datasette, database), "label": "Runs to compare"}]


@_hook
def render_cell(value: Any, column: str, table: str | None, database: str, datasette: Any) -> Any:
    """Run ids lead to the page of the run."""
    if column != "run_id" and not (column == "id" and table in ("runs", "run_summary")):
        return None
    if database not in lab_names(datasette):
        return None
    run_id, label = (value["value"], value["label"]) if isinstance(value, dict) else (value, None)
    if not isinstance(run_id, str) or not run_id:
        return None
    from markupsafe import Markup, escape

    shown = f"{label} {run_id[-6:]}" if label and label != run_id else run_id
    return Markup('<a href="{}">{}</a>').format(run_link(datasette, database, run_id), escape(shown))
