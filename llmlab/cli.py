"""The commands: a signature, help with examples, one call each."""

import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llmlab import __version__
from llmlab.errors import Exit, LabError
from llmlab.listing import Format
from llmlab.options import (
    Api,
    ApiChoice,
    Budget,
    Db,
    Host,
    Json,
    KeepAlive,
    KeepText,
    ListFormat,
    ModelName,
    ModelOptions,
    NumCtx,
    NumPredict,
    OnOverflow,
    Overflowing,
    PairedOptions,
    ReportFormat,
    Reserve,
    System,
    Tag,
    Think,
    Timeout,
    model_options,
)


class LabGroup(TyperGroup):
    """Turns every LabError into one line on stderr and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LabError as error:
            _say(f"Error: {error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            _close_stdout()
            raise typer.Exit(Exit.OK) from None


app = typer.Typer(
    cls=LabGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
db = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(db, name="db", help="The results database.")


def main() -> None:
    """The entry point of the command `llmlab`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _close_stdout() -> None:
    """The reader of a pipe has gone: leave nothing for the interpreter to flush into it."""
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work` on the fastest loop there is."""
    import asyncio

    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _version(show: bool) -> None:
    if show:
        print(f"llmlab {__version__}")
        raise typer.Exit


@app.callback()
def llmlab(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    """Measure, talk to and serve the language models on your own machine, and compare machines honestly."""


@app.command(cls=PairedOptions)
def chat(
    question: Annotated[str | None, typer.Argument(help="One question; without it a conversation.")] = None,
    model: ModelName = None,
    system: System = None,
    option: ModelOptions = None,
    num_ctx: NumCtx = None,
    num_predict: NumPredict = None,
    budget: Budget = True,
    on_overflow: Overflowing = OnOverflow.drop,
    reserve: Reserve = None,
    think: Think = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a turn.")] = False,
    as_json: Json = False,
    tag: Tag = None,
    keep_text: KeepText = False,
    keep_alive: KeepAlive = None,
    host: Host = None,
    api: ApiChoice = Api.auto,
    timeout: Timeout = 600.0,
    db: Db = None,
) -> None:
    """Talk to a model; every answer ends with prompt tokens, time to first token and tokens per second.

    Examples:

      llmlab chat

      llmlab chat "What is a KV cache?"

      git diff | llmlab chat "Write a commit message" -m qwen2.5:3b

      llmlab chat --no-budget --num-ctx 512
    """
    from llmlab.chat import ChatSettings
    from llmlab.chat import chat as run_chat
    from llmlab.settings import parse_keep_alive
    from llmlab.target import Choice

    settings = ChatSettings(
        choice=Choice(host, api.value, model, timeout, num_ctx),
        db=db,
        tag=tag,
        system=system,
        num_ctx=num_ctx,
        num_predict=num_predict,
        options=model_options(option),
        think=think,
        keep_alive=parse_keep_alive(keep_alive),
        keep_text=keep_text,
        budget=budget,
        on_overflow=on_overflow.value,
        reserve=reserve,
        as_json=as_json,
        lines=lines,
        question=question,
    )
    raise typer.Exit(_run(run_chat(settings)))


@app.command()
def report(
    which: Annotated[
        list[str] | None, typer.Argument(metavar="TAG|RUN", help="Tags or run ids. Default: the two newest bench runs.")
    ] = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="md pastes into an issue; csv and json have raw values.")
    ] = ReportFormat.table,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write to a file.")] = None,
    fail_on_regression: Annotated[
        float | None,
        typer.Option("--fail-on-regression", min=0, metavar="PCT", help="Exit 1 where the second run is worse by PCT."),
    ] = None,
    db: Db = None,
) -> None:
    """Compare bench runs: what differs, the two-run tables, the shape, and what to expect.

    A tag means its newest run; one tag alone, or the same twice, its two newest.

    Examples:

      llmlab report laptop desktop

      llmlab report --format md laptop

      llmlab report laptop --fail-on-regression 10
    """
    from llmlab.report import report as write_report
    from llmlab.settings import database_path
    from llmlab.store import Store

    with Store.read(database_path(db)) as store:
        code = write_report(store, which or [], format=form.value, output=output, fail_on_regression=fail_on_regression)
    raise typer.Exit(code)


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
    """List the models that the server has: size, quantization, longest window, and which are loaded."""
    from llmlab.inventory import list_models
    from llmlab.target import Choice

    _run(list_models(Choice(host, api.value, None, timeout), form))


@app.command()
def merge(
    other: Annotated[Path, typer.Argument(metavar="OTHER.db", help="The other machine's database; it is only read.")],
    db: Db = None,
) -> None:
    """Bring another machine's runs and calls into your database; doing it again changes nothing.

    Examples:

      llmlab merge desktop.db && llmlab report laptop desktop
    """
    from llmlab.settings import database_path
    from llmlab.store import Store
    from llmlab.store.merge import merge as merge_rows

    with Store.open(database_path(db)) as store:
        copied = merge_rows(store, other)
    _say(f"new: {copied.machines} machines, {copied.models} models, {copied.runs} runs, {copied.calls} calls")


@app.command()
def engine(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 11434,
    gguf: Annotated[
        Path | None, typer.Option("--gguf", metavar="FILE", help="A GGUF file, also one that Ollama pulled.")
    ] = None,
    num_parallel: Annotated[int, typer.Option("--num-parallel", min=1, metavar="N", help="Answers at once.")] = 4,
    max_queue: Annotated[int, typer.Option("--max-queue", min=0, metavar="N", help="Requests that may wait.")] = 512,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, metavar="N", help="Threads. Default: the physical cores.")
    ] = None,
) -> None:
    """Run the embedded engine for other programs: Ollama's API, with no Ollama installed.

    Examples:

      llmlab engine

      llmlab engine --gguf qwen2.5-3b-instruct-q4_k_m.gguf --num-parallel 2
    """
    from llmlab.engine import run_engine

    run_engine(host=host, port=port, gguf=gguf, num_parallel=num_parallel, max_queue=max_queue, threads=threads)


@db.command("path")
def db_path(db: Db = None) -> None:
    """Print where the results are: sqlite3 "$(llmlab db path)"."""
    from llmlab.settings import database_path

    print(database_path(db))
