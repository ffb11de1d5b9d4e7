"""The HTML report: one file that loads nothing, and the same figures in every form to the digit."""

import io
import re
from html import unescape
from pathlib import Path

import pytest
from conftest import Lab
from datasette.app import Datasette
from lesson_runs import keep, lesson_calls, lesson_run, overflow_call, prompt_call
from web import Page, chromium

from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.report.document import Lines, Report, Table
from llmlab.report.formats.html import write_html
from llmlab.report.selection import select
from llmlab.report.tables import blocks
from llmlab.store import Store

EVIL = "<script>alert(1)</script>|<b>\\ \n&quot;'\"=cmd()"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


def lesson(db: Path, tags: tuple[str, str] = ("laptop", "desktop"), model: str = "qwen2.5:3b") -> None:
    for number, tag in enumerate(tags, start=1):
        more = [
            overflow_call(2, "no_budget", True),
            overflow_call(12, "no_budget", False, cut="proved", prompt_tokens=700),
            *(prompt_call(100, 130, 7 * factor, 19, 8, error=EVIL, outcome="error") for factor in (1, 2)),
        ]
        run = lesson_run(number, tag=tag, num_ctx=1024, server_kind="ollama", server_version="0.12.6")
        keep(db, run, [*lesson_calls(number), *more], Model(name=model, digest="aaa"), Machine(id=tag, cpu=EVIL))


def markdown_tables(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text, unescaped."""
    found: list[list[list[str]]] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            cells = [cell.strip() for cell in re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]]
            if not all(set(cell) <= {"-", ":"} and cell for cell in cells):
                found[-1].append([unescape(re.sub(r"\\(.)", r"\1", cell)) for cell in cells])
        before = line
    return found


async def test_every_form_has_the_same_figures_to_the_digit(lab: Lab, db: Path) -> None:
    lesson(db)
    with Store.read(db) as store:
        report = Report.of(select(store, ["laptop", "desktop"]))
        ids = [side.run.id for side in report.sides]
        expected = [
            [[" ".join(text.split()) for text in row] for row in (block.columns, *block.rows)]
            for block in blocks(report)
            if isinstance(block, Table)
        ]
    assert len(expected) == 7 and all(len(rows) > 1 for rows in expected)
    html = Page(lab("report", "laptop", "desktop", "--format", "html").stdout)
    assert html.tables == expected
    assert markdown_tables(lab("report", "laptop", "desktop", "--format", "md").stdout) == expected
    terminal = lab("report", "laptop", "desktop").stdout.splitlines()
    for row in (row for rows in expected for row in rows):
        assert [text for text in row if text] in [re.split(r"\s{2,}", line.strip()) for line in terminal]
    datasette = Datasette([str(db)])
    response = await datasette.client.get(f"/lab/-/compare?run={ids[0]}&run={ids[1]}")
    assert Page(response.text).tables == expected


def test_findings_come_first_and_nothing_is_left_out(lab: Lab, db: Path) -> None:
    lesson(db)
    page = Page(lab("report", "laptop", "desktop", "--format", "html").stdout)
    flat = " ".join(page.text.split())
    assert flat.index("Findings") < flat.index("The prompt is the slow part") < flat.index("May I compare?")
    assert flat.index("Prompt length") < flat.index("How long a prompt makes you wait") < flat.index("Shape")
    with Store.read(db) as store:
        for block in blocks(Report.of(select(store, ["laptop", "desktop"]))):
            for line in block.lines if isinstance(block, Lines) else block.notes:
                assert " ".join(line.split()) in flat


def test_one_run_has_its_charts_in_raw_values(lab: Lab, db: Path) -> None:
    lesson(db)
    out = lab("report", _id(db, "laptop"), "--format", "html").stdout
    assert re.findall(r'data-chart="(\w+)"', out) == ["ttft", "speeds", "cold_warm", "users", "window"]
    assert "Time to first token, s" in out and "÷ first row" not in out


def _id(db: Path, tag: str) -> str:
    with Store.read(db) as store:
        return store.find_run(tag).id


def test_nothing_hostile_becomes_markup(lab: Lab, db: Path) -> None:
    lesson(db, (EVIL, EVIL + "2"), EVIL)
    for words in ([], [_id(db, EVIL)]):
        page = Page(lab("report", *words, "--format", "html").stdout)
        assert not page.tags & {"script", "b", "img", "iframe", "object", "link"}
        assert not [name for name in page.attributes if name.startswith("on")]
        assert "<script>alert(1)</script>|<b>" in page.text
        widths = [{len(row) for row in table} for table in page.tables]
        assert all(len(width) == 1 for width in widths)


def test_the_file_refers_to_nothing(lab: Lab, db: Path) -> None:
    lesson(db)
    out = lab("report", "--format", "html").stdout
    page = Page(out)
    assert not page.attributes & {"src", "href", "srcset", "id", "style", "action"}
    assert "default-src 'none'" in out
    assert not re.search(r"url\(|@import", out)
    assert set(re.findall(r"https?://[^\s\"']+", out)) == {"http://www.w3.org/2000/svg"}


def test_an_empty_store_gives_a_page_that_says_so(lab: Lab) -> None:
    result = lab("report", "--format", "html")
    assert result.exit_code == 0 and result.stdout.endswith("</html>\n")
    assert "no bench run" in Page(result.stdout).text


def test_dark_colours_are_for_screens_only() -> None:
    """Paper is white whatever the reader's screen is."""
    out = io.StringIO()
    write_html(Report.of([]), out)
    assert len(re.findall(r"prefers-color-scheme: dark", out.getvalue())) == 2
    assert len(re.findall(r"@media screen and \(prefers-color-scheme: dark\)", out.getvalue())) == 2


@pytest.mark.browser
def test_the_file_opens_with_the_network_cut_off_and_asks_for_nothing(lab: Lab, db: Path, tmp_path: Path) -> None:
    lesson(db, ("laptop", EVIL))
    file = tmp_path / "report.html"
    assert lab("report", "--format", "html", "--output", str(file)).exit_code == 0
    with chromium() as context:
        context.set_offline(True)
        page = context.new_page()
        asked, complaints = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(file.as_uri())
        assert asked == [file.as_uri()] and complaints == []
        assert page.locator("figure.chart").count() == 5
        for chart in page.locator("figure.chart .panels svg").all():
            box = chart.bounding_box()
            assert box and box["width"] > 300 and box["height"] > 150
        lines = page.locator("[data-chart=ttft] .panels .run-1 .line")
        assert lines.evaluate("line => getComputedStyle(line).strokeDasharray") == "7px, 4px"
        colour = "el => getComputedStyle(el).backgroundColor"
        light = page.locator("body").evaluate(colour)
        page.emulate_media(color_scheme="dark")
        assert (light, page.locator("body").evaluate(colour)) == ("rgb(255, 255, 255)", "rgb(18, 24, 31)")
        page.emulate_media(color_scheme="dark", media="print")
        assert page.locator("body").evaluate(colour) == "rgb(255, 255, 255)"
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
