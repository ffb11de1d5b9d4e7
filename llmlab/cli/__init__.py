"""The command line: one group that turns every error into one line and an exit code, and its commands."""

import errno
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llmlab import __version__
from llmlab.errors import Exit, LabError, one_line

MisusedError: Any = typer.BadParameter.__mro__[1]
"""What Typer raises where the command line cannot be read; it has no public name of its own."""
UNWRITABLE = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF)


class LabGroup(TyperGroup):
    """Turns every LabError, and every failure of the system, into one line on stderr and its exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except SystemExit as end:
            raise SystemExit(_flushed(end.code)) from None
        except OSError as error:
            raise SystemExit(_system_failed(error)) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LabError as error:
            say(f"Error: {error}")
            raise typer.Exit(error.exit_code) from None
        except MisusedError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            what = one_line(error.format_message()).replace("Value error, ", "")
            what += "" if what.endswith((".", "?")) else "."
            say(f"Error: {what} See: {error.ctx.command_path if error.ctx else 'llmlab'} --help")
            raise typer.Exit(Exit.USAGE) from None
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            _drop_stdout()
            # Whoever reads a listing may have enough of it; a bench without its reader has not measured everything.
            raise typer.Exit(Exit.FAILED if ctx.invoked_subcommand == "bench" else Exit.OK) from None


app = typer.Typer(
    cls=LabGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point of the command `llmlab`."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()


def say(line: str) -> None:
    with suppress(OSError):  # where nothing can be said, the exit code still is
        print(line, file=sys.stderr)


def _open_missing_streams() -> None:
    """A standard stream that was closed becomes the null device; else a socket would get its number, and its output."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _flushed(code: Any) -> Any:
    """The exit code, once the rest of the output is written; 1 where it cannot be."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        return _system_failed(error)
    return code


def _system_failed(error: OSError) -> Exit:
    """Say what the system refused: a full disk behind stdout, a file that is in the way."""
    where = "cannot write the output: " if error.errno in UNWRITABLE else ""
    say(one_line(f"Error: {error.filename or ''}{': ' if error.filename else where}{error.strerror or error}"))
    _drop_stdout()
    return Exit.FAILED


def _drop_stdout() -> None:
    """Nobody takes the output any more: leave nothing that the interpreter could fail to write at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
