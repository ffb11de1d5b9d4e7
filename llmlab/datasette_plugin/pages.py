"""The plugin's pages: the runs to tick, one run, and runs compared."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from datasette import Response
from datasette.utils import tilde_decode
from markupsafe import Markup

from llmlab.datasette_plugin.attached import Missing, read
from llmlab.datasette_plugin.links import compare_link, rows_link, run_link, runs_link
from llmlab.datasette_plugin.queries import QUERIES
from llmlab.errors import LabError, UsageError
from llmlab.figures import format_count
from llmlab.report.document import Report
from llmlab.report.markup import body, styles
from llmlab.report.selection import select
from llmlab.report.side import Side, plain
from llmlab.run import Run
from llmlab.store import Store
from llmlab.store.rows import RUN_COLUMNS, run_of

View = Callable[[Any, Any, str], Awaitable[Response]]
PAGE_RUNS = 100
_RUNS = f"""
    SELECT {", ".join(RUN_COLUMNS)}, (SELECT count(*) FROM calls WHERE run_id = runs.id) AS calls FROM runs
    WHERE (:command = '' OR command = :command)
        AND (:after = '' OR (started_utc, id) < (SELECT started_utc, id FROM runs WHERE id = :after))
    ORDER BY started_utc DESC, id DESC LIMIT {PAGE_RUNS + 1}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One line of the start page, as texts."""

    run_id: str
    tag: str
    when: str
    machine: str
    model: str
    window: str
    outcome: str
    calls: str
    findings: Sequence[str]
    comparable: bool
    command: str
    link: str


def _page_of(view: View) -> Callable[[Any, Any], Awaitable[Response]]:
    """`view` with the name of the database in the address; what is not there and what fails becomes a clear page."""

    async def page(request: Any, datasette: Any) -> Response:
        name = tilde_decode(request.url_vars["database"])
        if name in datasette.databases:
            await datasette.ensure_permissions(request.actor, [("view-database", name), "view-instance"])
        try:
            return await view(request, datasette, name)
        except LabError as error:
            # Not raised: Datasette would print a traceback for every address that leads nowhere.
            status = 404 if isinstance(error, Missing) else 400
            return await _shown(request, datasette, "problem", name, status=status, problem=f"{error}.")

    return page


@_page_of
async def runs_page(request: Any, datasette: Any, name: str) -> Response:
    """The start page: the newest runs, bench runs with a box to tick."""
    everything = request.args.get("all") == "1"
    after = request.args.get("after") or ""
    found = await read(datasette, name, lambda store: _newest(store, "" if everything else "bench", after))
    listed = [_listed(datasette, name, side, calls) for side, calls in found[:PAGE_RUNS]]
    arguments = {"all": "1"} if everything else {}
    return await _shown(
        request,
        datasette,
        "runs",
        name,
        runs=listed,
        everything=everything,
        older=runs_link(datasette, name, **arguments, after=listed[-1].run_id) if len(found) > PAGE_RUNS else None,
        newest=runs_link(datasette, name, **arguments) if after else None,
        other=runs_link(datasette, name) if everything else runs_link(datasette, name, all="1"),
        action=compare_link(datasette, name),
        queries=await _queries(request, datasette, name),
    )


@_page_of
async def compare_page(request: Any, datasette: Any, name: str) -> Response:
    """Two runs or more: what differs, tables with their charts, the shape with verdicts."""
    wanted = list(dict.fromkeys(request.args.getlist("run")))
    if not wanted:
        return Response.redirect(runs_link(datasette, name))
    if len(wanted) == 1:
        return Response.redirect(run_link(datasette, name, wanted[0]))
    return await _report_page(request, datasette, name, wanted)


@_page_of
async def run_page(request: Any, datasette: Any, name: str) -> Response:
    """One run: its report with charts in raw values, and the way to its calls."""
    return await _report_page(request, datasette, name, [unquote(request.url_vars["run"])])


async def _report_page(request: Any, datasette: Any, name: str, words: Sequence[str]) -> Response:
    """The report of the runs that `words` (ids, ends of ids, tags) mean; Missing where one means none."""

    def report(store: Store) -> tuple[list[tuple[Run, str]], str]:
        runs = [_find(store, word) for word in words]
        if len(runs) == 1 and runs[0].command != "bench":
            return [(runs[0], plain(runs[0].tag, runs[0].id[-6:]))], ""
        sides = select(store, [run.id for run in runs])
        links = [run_link(datasette, name, side.run.id) for side in sides] if len(sides) > 1 else ()
        return [(side.run, side.label) for side in sides], body(Report.of(sides), links)

    runs, markup = await read(datasette, name, report)
    rows = [
        {"label": label, **{table: rows_link(datasette, name, table, run.id) for table in ("calls", "call_rates")}}
        for run, label in runs
    ]
    title = " against ".join(label for _, label in runs)
    back = runs_link(datasette, name)
    return await _shown(
        request, datasette, "report", name, title=title, runs=rows, back=back, run=runs[0][0], report=Markup(markup)
    )


def _find(store: Store, word: str) -> Run:
    try:
        return store.find_run(word, "bench")
    except UsageError as error:
        raise Missing(error.what, error.hint) from None


def _newest(store: Store, command: str, after: str) -> list[tuple[Side, int]]:
    """The runs of the start page, each with its number of calls."""
    rows = store.db.execute(_RUNS, {"command": command, "after": after}).fetchall()
    found = []
    for *columns, calls in rows:
        run = run_of(columns)
        machine, model = store.machine(run.machine_id), store.model(run.model_id)
        found.append((Side(run=run, calls=(), model=model, machine=machine, label=plain(run.tag, "")), calls))
    return found


def _listed(datasette: Any, name: str, side: Side, calls: int) -> Listed:
    run = side.run
    return Listed(
        run_id=run.id,
        tag=side.label or run.id[-6:],
        when=plain(run.started_utc)[:16].replace("T", " "),
        command=run.command,
        machine=side.machine_line,
        model=side.model_name,
        window=format_count(side.window),
        outcome=run.outcome or "unfinished",
        calls=format_count(calls),
        findings=_findings(run),
        comparable=run.command == "bench",
        link=run_link(datasette, name, run.id),
    )


def _findings(run: Run) -> list[str]:
    """What the run found, as it was kept; nothing where it kept none that can be read."""
    try:
        kept = json.loads(run.findings_json or "{}")
    except ValueError:
        return []
    found = kept.get("findings") if isinstance(kept, dict) else None
    return [plain(text) for text in found if isinstance(text, str)] if isinstance(found, list) else []


async def _queries(request: Any, datasette: Any, name: str) -> list[Mapping[str, str]]:
    found = await datasette.get_canned_queries(name, request.actor)
    ours = [found[key] for key in QUERIES if key in found]
    return [
        {"title": q["title"], "description": q["description"], "href": datasette.urls.query(name, q["name"])}
        for q in ours
    ]


async def _shown(request: Any, datasette: Any, page: str, name: str, status: int = 200, **context: Any) -> Response:
    context |= {"database": name if name in datasette.databases else None, "styles": Markup(styles())}
    html = await datasette.render_template(f"llmlab_{page}.html", context, request=request)
    return Response.html(html, status=status)
