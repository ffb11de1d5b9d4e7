"""Every shared option once: flag, environment variable, default, help."""

from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from llmlab.errors import UsageError
from llmlab.listing import Format


class Api(StrEnum):
    auto = "auto"
    ollama = "ollama"
    openai = "openai"


class OnOverflow(StrEnum):
    drop = "drop"
    summary = "summary"
    refuse = "refuse"


class Experiment(StrEnum):
    prompt_length = "prompt_length"
    repeat_prompt = "repeat_prompt"
    users = "users"
    overflow = "overflow"


class ReportFormat(StrEnum):
    table = "table"
    md = "md"
    csv = "csv"
    json = "json"
    html = "html"


def _option(*flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, **settings)


Host = Annotated[
    str | None,
    _option(
        "--host",
        metavar="HOST",
        help="Server address, or `engine` for the embedded one. Default: OLLAMA_HOST, then 127.0.0.1:11434.",
    ),
]
ApiChoice = Annotated[Api, _option("--api", help="Which wire the server speaks; auto asks it.")]
ModelName = Annotated[
    str | None,
    _option(
        "-m",
        "--model",
        envvar="LLMLAB_MODEL",
        metavar="MODEL",
        help="Model. Default: the only one loaded, else the newest installed.",
    ),
]
ModelNames = Annotated[
    list[str] | None,
    _option("-m", "--model", envvar="LLMLAB_MODEL", metavar="MODEL", help="Model; give it again for another run each."),
]
NumCtx = Annotated[
    int | None, _option("--num-ctx", min=1, metavar="TOKENS", help="Context window asked for. Default: 4096.")
]
NumPredict = Annotated[
    int | None, _option("-n", "--num-predict", min=1, metavar="TOKENS", help="Longest answer, in tokens.")
]
ModelOptions = Annotated[
    list[str] | None,
    _option("-o", "--option", metavar="KEY VALUE", help="Model option such as `temperature 0`; may be repeated."),
]
System = Annotated[str | None, _option("-s", "--system", metavar="TEXT", help="System prompt.")]
Think = Annotated[bool | None, _option("--think/--no-think", help="Ask a thinking model to think, or not to.")]
KeepAlive = Annotated[
    str | None,
    _option("--keep-alive", metavar="TIME", help="How long the server keeps the model, such as 10m or -1."),
]
Timeout = Annotated[
    float, _option("--timeout", min=0.1, metavar="SECONDS", help="Longest silence to wait through; loads are slow.")
]
Db = Annotated[
    Path | None,
    _option("--db", envvar="LLMLAB_DB", metavar="FILE", help="Results database. See `llmlab db path`."),
]
Tag = Annotated[
    str | None, _option("--tag", envvar="LLMLAB_TAG", metavar="WORD", help="Name this run, for example laptop.")
]
KeepText = Annotated[bool, _option("--keep-text", help="Store prompts and answers too; otherwise only numbers.")]
Budget = Annotated[
    bool, _option("--budget/--no-budget", help="Keep the conversation inside the window, or let it overflow.")
]
Overflowing = Annotated[
    OnOverflow, _option("--on-overflow", help="What the budget does with turns that no longer fit.")
]
Reserve = Annotated[
    int | None,
    _option("--reserve", min=1, metavar="TOKENS", help="Tokens kept free for the answer. Default: 512, at most 1/4."),
]
ListFormat = Annotated[Format, _option("--format", help="csv and json hold every column and raw values.")]
Json = Annotated[bool, _option("--json", help="Print JSON instead of text.")]


class PairedOptions(TyperCommand):
    """A command whose `-o KEY VALUE` takes two words, as one `KEY=VALUE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _join_pairs(args))


def _join_pairs(args: list[str]) -> list[str]:
    joined: list[str] = []
    rest = iter(args)
    for arg in rest:
        joined.append(arg)
        if arg == "--":
            break
        if arg in ("-o", "--option") and (key := next(rest, None)) is not None:
            value = None if "=" in key else next(rest, None)
            joined.append(key if value is None else f"{key}={value}")
    return [*joined, *rest]


class ResumableCommand(PairedOptions):
    """A command whose `--resume` may stand alone (the newest unfinished run) or be followed by a run's id."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _resume_value(args))


def _resume_value(args: list[str]) -> list[str]:
    """`--resume RUN` as `--resume=RUN`; alone, or before an experiment or option, as `--resume=newest`."""
    given: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--resume":
            is_run = bool(rest) and not rest[0].startswith("-") and rest[0] not in list(Experiment)
            arg = f"--resume={rest.pop(0) if is_run else 'newest'}"
        given.append(arg)
    return given


def whole_numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    """`1,2,4` as (1, 2, 4), sorted, each once; UsageError where it is something else."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in parts):
        raise UsageError(f"{name} {text} is no list of whole numbers", f"Write it as: {name} 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


def repeat_number(text: str) -> int | None:
    """`auto` as None, else a positive whole number; UsageError where it is something else."""
    if text == "auto":
        return None
    found = whole_numbers("--repeat", text)
    if found is None or len(found) != 1:
        raise UsageError(f"--repeat {text} is neither auto nor a number", "Write it as: --repeat 5")
    return found[0]


def model_options(pairs: list[str] | None) -> dict[str, Any]:
    """The `-o` options as the wire wants them: numbers, true and false as JSON, anything else as text.

    `num_ctx` and `num_predict` have flags of their own, which the budget needs. UsageError: a value is missing.
    """
    import json

    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"-o {pair} has no value", "Write it as: -o temperature 0")
        if key in ("num_ctx", "num_predict"):
            raise UsageError(f"-o {key} would bypass the budget", f"Use --{key.replace('_', '-')} {text}")
        try:
            options[key] = json.loads(text, parse_constant=str, parse_float=_finite)
        except (ValueError, RecursionError):
            options[key] = text
    return options


def _finite(text: str) -> float | str:
    """JSON knows no infinity, not even as 1e999."""
    number = float(text)
    return number if isfinite(number) else text
