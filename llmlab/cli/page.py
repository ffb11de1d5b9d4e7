"""The page docs/cli.md, printed from the commands: `python -m llmlab.cli.page > docs/cli.md`."""

from typing import Any

import typer

from llmlab.cli import app

_HEAD = """\
# The command line

Printed from the code by `python -m llmlab.cli.page`.

Answers, tables and listings go to standard output, everything said beside them to standard error. Exit codes: 0 done;
1 a regression or a failed experiment; 2 usage; 3 no server reachable; 4 the server refused, failed or stopped in
mid-answer; 5 the database; 130 Ctrl-C.

| variable | what it sets |
|---|---|
| `OLLAMA_HOST` | the server, in every form that Ollama takes; `--host` goes first |
| `LLMLAB_MODEL` | the model; `-m` goes first |
| `LLMLAB_DB` | the database; `--db` goes first |
| `LLMLAB_TAG` | the tag of runs; `--tag` goes first |
| `LLMLAB_API_KEY` | the key for a server that wants one; it has no option, so that no list of processes shows it |
| `LLMLAB_SERVE_KEY` | the key that clients of `llmlab serve` must send |
"""
_WIDTH = 100


def cli_page() -> str:
    """The page, as Markdown: the help of every command."""
    group = typer.main.get_command(app)
    return "\n".join([_HEAD, *_sections(group, "llmlab")])


def _sections(command: Any, name: str) -> list[str]:
    context = command.make_context(name, [], resilient_parsing=True, max_content_width=_WIDTH, terminal_width=_WIDTH)
    context.info_name = name
    found = [f"## {name}\n\n```text\n{context.get_help().strip()}\n```\n"]
    for child in getattr(command, "commands", {}).values():
        found += _sections(child, f"{name} {child.name}")
    return found


if __name__ == "__main__":
    print(cli_page(), end="")
