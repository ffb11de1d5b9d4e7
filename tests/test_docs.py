"""README and docs: pages printed from the code are current, and every command in them exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from llmlab.cli import app
from llmlab.cli.page import cli_page
from llmlab.fake import FakeServer, Figures

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


def columns(text: str) -> list[list[str]]:
    """The lines of a printed table that head it: those before a line that begins with a number or a name of a row."""
    lines = text.splitlines()
    return [re.split(r"\s{2,}", line.strip()) for line, blank in zip(lines[1:], lines, strict=False) if not blank]


def test_the_run_in_the_readme_looks_like_a_run_of_today(lab):
    (shown,) = re.findall(r"<!-- output: bench -->\n```text\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    figures = Figures(decode_gap_ns=500_000, prefill_tokens_per_s=200_000, slots=4, size_vram_bytes=0)
    with FakeServer(figures) as fake:
        printed = lab("bench", "--quick", "--tag", "laptop", "--repeat", "1", "--host", fake.url).stdout
    heads = {tuple(head) for head in columns(printed)}
    for head in ("asked", "prompt", "users", "turns"):
        (found,) = [tuple(h) for h in columns(shown) if h[0] == head]
        assert found in heads
    for line in shown.splitlines():
        if line.endswith(("each cold", "twice", "moment", "for it")):
            assert line in printed
