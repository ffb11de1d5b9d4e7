"""The commands: a signature, help with examples, one call each."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llmlab import __version__
from llmlab.errors import Exit, LabError
from llmlab.options import (
    Api,
    ApiChoice,
    Budget,
    Db,
    Host,
    Json,
    KeepAlive,
    KeepText,
    ModelName,
    ModelOptions,
    NumCtx,
    NumPredict,
    OnOverflow,
    Overflowing,
    PairedOptions,
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
        choice=Choice(host, api.value, model, timeout),
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


@db.command("path")
def db_path(db: Db = None) -> None:
    """Print where the results are: sqlite3 "$(llmlab db path)"."""
    from llmlab.settings import database_path

    print(database_path(db))
