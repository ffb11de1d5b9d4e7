"""Commands about what was recorded and what there is: a signature, help with examples, one call each."""

from pathlib import Path
from typing import Annotated

import typer

from llmlab.cli import app, run, say
from llmlab.listing import Format
from llmlab.options import (
    Api,
    ApiChoice,
    Db,
    Host,
    ListFormat,
    Timeout,
)

db = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(db, name="db", help="The results database.")


@app.command()
def runs(
    command: Annotated[str | None, typer.Option("--command", metavar="WORD", help="Only runs of one command.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="WORD", help="Only runs with this tag.")] = None,
    limit: Annotated[int, typer.Option("-l", "--limit", min=1, metavar="N", help="How many, newest first.")] = 20,
    form: ListFormat = Format.table,
    db: Db = None,
) -> None:
    """List the recorded runs, newest first.

    Examples:

      llmlab runs

      llmlab runs --command bench --format csv
    """
    from llmlab.inventory import list_runs

    list_runs(db, command, tag, limit, form)


@app.command()
def models(
    form: ListFormat = Format.table, host: Host = None, api: ApiChoice = Api.auto, timeout: Timeout = 600.0
) -> None:
    """List the models that the server has.

    Size, quantization, longest window, and which are in memory."""
    from llmlab.inventory import list_models
    from llmlab.target import Choice

    run(list_models(Choice(host, api.value, None, timeout), form))


@app.command()
def merge(
    other: Annotated[Path, typer.Argument(metavar="OTHER.db", help="The other machine's database; it is only read.")],
    db: Db = None,
) -> None:
    """Bring another machine's runs in.

    Doing it again changes nothing, and the other file is only read.

    Examples:

      llmlab merge desktop.db && llmlab report laptop desktop
    """
    from llmlab.settings import database_path
    from llmlab.store import Store
    from llmlab.store.merge import merge as merge_rows

    with Store.open(database_path(db)) as store:
        copied = merge_rows(store, other)
    say(f"new: {copied.machines} machines, {copied.models} models, {copied.runs} runs, {copied.calls} calls")


@app.command()
def export(
    which: Annotated[list[str], typer.Argument(metavar="TAG|RUN...", help="The runs to take along.")],
    output: Annotated[Path, typer.Option("--output", metavar="FILE.db", help="The new database.")],
    texts: Annotated[bool, typer.Option("--texts", help="Take kept prompts and answers along too.")] = False,
    db: Db = None,
) -> None:
    """Make a small database of some runs.

    To give away: the other side takes it in with `llmlab merge`."""
    from llmlab.export import export as run_export
    from llmlab.settings import database_path

    run_export(database_path(db), which, output, texts=texts)


@app.command()
def browse(
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port. Default: a free one.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
    db: Db = None,
) -> None:
    """Open the results in Datasette.

    Runs to tick, a compare page with charts, ready-made queries; read-only."""
    from llmlab.browse import browse as run_browse
    from llmlab.settings import database_path

    run_browse(database_path(db), port=port, open_browser=open_browser)


@db.command("path")
def db_path(db: Db = None) -> None:
    """Print where the results are: sqlite3 "$(llmlab db path)"."""
    from llmlab.settings import database_path

    print(database_path(db))
