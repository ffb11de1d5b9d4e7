"""The command line: one group that turns every error into one line and an exit code, and its commands."""

import os
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llmlab import __version__
from llmlab.errors import Exit, LabError


class LabGroup(TyperGroup):
    """Turns every LabError into one line on stderr and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LabError as error:
            say(f"Error: {error}")
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


def main() -> None:
    """The entry point of the command `llmlab`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()


def say(line: str) -> None:
    print(line, file=sys.stderr)


def _close_stdout() -> None:
    """The reader of a pipe has gone: leave nothing for the interpreter to flush into it."""
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115


def run(work: Coroutine[Any, Any, Any]) -> Any:
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


from llmlab.cli import measuring, records  # noqa: E402, F401  the commands register themselves with `app`
