"""README and docs: pages printed from the code are current, and every command in them exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from llmlab.cli import app
from llmlab.cli.page import cli_page

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def commands() -> list[tuple[str, str]]:
    """Every line of a shell block that runs llmlab, with its page."""
    found = []
    for page in PAGES:
        for kind, block in BLOCK.findall(page.read_text()):
            if kind == "sh":
                found += [(page.name, line) for line in block.splitlines() if re.search(r"(^|[\s/|])llmlab ", line)]
    return found


def test_the_cli_page_is_current():
    assert (ROOT / "docs" / "cli.md").read_text() == cli_page()


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_in_the_docs_is_one_that_the_program_takes(page, line):
    words = shlex.split(line[re.search(r"(^|[\s/|])llmlab ", line).start() :].strip(), comments=True)
    words = words[1 : words.index("&&") if "&&" in words else None]
    words = words[: words.index("|") if "|" in words else None]
    group = typer.main.get_command(app)
    command = group.commands[words.pop(0)]
    while words and getattr(command, "commands", None):
        command = command.commands[words.pop(0)]
    with command.make_context("llmlab", words, resilient_parsing=False) as context:
        assert context.command is command


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_is_short_and_has_both_commands():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "bench --quick --tag laptop" in text
    assert "-m pytest" in text
