"""Browse: the pages of the live file, read-only, on loopback, until Ctrl-C; and driven in a browser."""

import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from lesson_runs import keep, lesson_calls, lesson_run, overflow_call
from web import Page, chromium

from llmlab.browse import browse
from llmlab.errors import StoreError, UsageError
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store

EVIL = "<img src=x onerror=alert(1)>"
PROGRAM = """
import sys
from pathlib import Path
from llmlab.browse import browse
path, port, open_browser = sys.argv[1:]
browse(Path(path), port=int(port) if port else None, open_browser=bool(open_browser))
"""
# File permissions do not bind root, unless it gives that up.
BOUND = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if hasattr(os, "geteuid") and not os.geteuid() else ()
)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


def bench(db: Path, number: int, tag: str) -> Run:
    overflow = [overflow_call(2, "no_budget", True), overflow_call(12, "no_budget", False, cut="proved")]
    run = lesson_run(number, tag=tag, num_ctx=1024)
    return keep(db, run, [*lesson_calls(number), *overflow], Model(name="demo", digest="a"), Machine(id=tag, cpu=EVIL))


@dataclass
class Browsing:
    """A running `browse`: what it said, and where it is."""

    process: subprocess.Popen[str]
    said: str

    @property
    def address(self) -> str:
        return next(word for word in self.said.split() if word.startswith("http"))

    def get(self, path: str = "", **headers: str) -> httpx.Response:
        address = httpx.URL(self.address).join(path) if path else self.address
        return httpx.get(address, headers=headers, follow_redirects=True, trust_env=False)


@contextmanager
def browsing(
    path: Path, *, port: str = "0", open_browser: bool = False, prefix: Sequence[str] = (), **env: str
) -> Iterator[Browsing]:
    """Browse in a process of its own, as people do."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", PROGRAM, str(path), port, "yes" if open_browser else ""],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    assert process.stderr
    try:
        yield Browsing(process, process.stderr.readline())
    finally:
        process.kill()
        process.communicate()


def test_it_says_the_address_serves_the_runs_and_ends_quietly(db: Path) -> None:
    bench(db, 1, "laptop")
    with browsing(db) as found:
        assert found.said.startswith(f"{db}: http://127.0.0.1:") and "Ctrl-C ends it" in found.said
        response = found.get()
        assert response.status_code == 200 and Page(response.text).tables[0][1][1] == "laptop"
        assert found.get("/").url == found.address
        assert found.get("/nowhere/at/all").status_code == 404
        found.process.send_signal(signal.SIGINT)
        out, err = found.process.communicate(timeout=20)
        assert (found.process.returncode, out, err) == (0, "", "")
    assert sorted(file.name for file in db.parent.iterdir() if file.name.startswith("lab.db")) == ["lab.db"]


def test_it_shows_rows_that_are_written_meanwhile(db: Path) -> None:
    bench(db, 1, "laptop")
    with Store.open(db) as store, browsing(db) as found:
        store.start_run(Run(command="bench", tag="while-open"))
        store.flush()
        assert Path(f"{db}-wal").stat().st_size
        assert "while-open" in found.get().text


def test_nothing_can_be_written_through_it_and_nobody_else_is_answered(db: Path) -> None:
    """A page elsewhere could point a name of its own at the address, and read along."""
    bench(db, 1, "laptop")
    before = db.read_bytes()
    with browsing(db) as found:
        assert found.get("/lab?sql=select+1").status_code == 200
        for sql in ("delete from runs", "with x as (select 1) delete from runs", "attach 'x.db' as x"):
            assert found.get(f"/lab?sql={sql}").status_code == 400
        assert found.get(Host="evil.example").status_code == 400
        port = httpx.URL(found.address).port
        assert found.get(Host=f"localhost:{port}").status_code == 200
        with closing(socket.socket(socket.AF_INET)) as elsewhere, pytest.raises(OSError):
            elsewhere.connect(("127.0.0.2", port))
    assert db.read_bytes() == before


def test_any_name_of_a_file_will_do(tmp_path: Path) -> None:
    path = tmp_path / "my runs %41 #1?x=y" / "é&<b>.lab.db"
    path.parent.mkdir()
    bench(path, 1, "laptop")
    with browsing(path) as found:
        response = found.get()
        assert response.status_code == 200 and "<b>" not in response.text
        run = next(link for link, text in Page(response.text).links.items() if text == "laptop")
        assert 'data-chart="ttft"' in found.get(run).text


def test_a_taken_port_is_passed_over_and_refused_when_asked_for(db: Path) -> None:
    bench(db, 1, "laptop")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1"):
            browse(db, port=port, open_browser=False)
    with browsing(db, port="") as first, browsing(db, port="") as second:
        assert first.address != second.address
        assert second.get().status_code == 200


def test_it_opens_the_browser_unless_told_not_to(db: Path, tmp_path: Path) -> None:
    bench(db, 1, "laptop")
    pipe = tmp_path / "asked"
    os.mkfifo(pipe)
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > "{pipe}"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    with browsing(db, open_browser=True, BROWSER=f"{script} %s") as found:
        assert pipe.read_text().strip() == found.address


def test_a_file_that_is_not_there_says_what_to_do(db: Path) -> None:
    with pytest.raises(StoreError, match="llmlab bench"):
        browse(db, open_browser=False)
    assert not db.exists()


def test_a_file_that_is_not_llmlabs_is_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (x)")
    with pytest.raises(StoreError, match="is not llmlab's"):
        browse(path, open_browser=False)
    (tmp_path / "text.db").write_text("no database at all, but long enough to look at" * 30)
    with pytest.raises(StoreError):
        browse(tmp_path / "text.db", open_browser=False)


def test_a_file_of_an_older_schema_is_shown_as_a_copy(db: Path) -> None:
    bench(db, 1, "laptop")
    with closing(sqlite3.connect(db)) as connection, connection:
        for view in ("run_summary", "cells", "call_rates"):
            connection.execute(f"DROP VIEW {view}")
        connection.execute("DELETE FROM _sqlite_migrations WHERE name = 'm002_views'")
    before = db.read_bytes()
    with browsing(db) as found:
        assert "a copy of this moment" in found.said
        assert "laptop" in found.get().text and found.get("/lab/run_summary").status_code == 200
    assert db.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="there, permissions of folders do not keep anybody from writing")
@pytest.mark.skipif(bool(BOUND) and not shutil.which("setpriv"), reason="root writes everywhere")
@pytest.mark.parametrize("with_wal", [False, True])
def test_a_folder_that_cannot_be_written_is_read_all_the_same(tmp_path: Path, with_wal: bool) -> None:
    """SQLite wants to write a -shm file beside a file in WAL mode, even to read it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    db = folder / "lab.db"
    bench(db, 1, "laptop")
    with Store.open(db) as store:
        if with_wal:
            store.start_run(Run(command="bench", tag="late-comer"))
            store.flush()
            (folder / "kept-wal").write_bytes(Path(f"{db}-wal").read_bytes())
    if with_wal:
        # As a killed writer leaves it.
        (folder / "kept-wal").rename(f"{db}-wal")
    folder.chmod(0o555)
    for file in folder.iterdir():
        file.chmod(0o444)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with browsing(db, prefix=BOUND) as found:
        text = found.get().text
        assert ("laptop" in text, "late-comer" in text) == (True, with_wal)
        assert ("a copy of this moment" in found.said) == with_wal
        found.process.send_signal(signal.SIGINT)
        assert found.process.communicate(timeout=20) == ("", "") and found.process.returncode == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    folder.chmod(0o755)


@pytest.mark.browser
def test_ticked_runs_are_compared_with_charts_and_links_work(db: Path) -> None:
    bench(db, 1, "laptop")
    bench(db, 2, EVIL)
    with browsing(db) as found, chromium() as context:
        page, complaints = context.new_page(), []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(httpx.URL(request.url).host))
        page.goto(found.address)
        boxes = page.locator("input[type=checkbox]")
        assert boxes.count() == 2
        for box in boxes.all():
            box.check()
        page.get_by_role("button", name="Compare the ticked runs").click()
        assert page.locator("h2").first.inner_text() == "Runs"
        assert page.locator("h2").nth(1).inner_text() == "May I compare?"
        assert page.locator("figure.chart").count() == 5
        for chart in page.locator("figure.chart .panels svg").all():
            bounds = chart.bounding_box()
            assert bounds and bounds["width"] > 300 and bounds["height"] > 150
        colours = {
            page.locator(f"[data-chart=ttft] .panels .run-{i} .line").evaluate("el => getComputedStyle(el).stroke")
            for i in (0, 1)
        }
        assert len(colours) == 2
        page.get_by_role("link", name="laptop (").click()
        page.wait_for_url("**/-/run/*")
        assert page.locator("h1").inner_text() == "laptop"
        page.get_by_role("link", name="calls", exact=True).click()
        page.wait_for_url("**/calls?*")
        assert page.locator("table.rows-and-columns tbody tr").count() == 22
        page.locator("td.col-run_id a").first.click()
        page.wait_for_url("**/-/run/*")
        page.get_by_role("link", name="All runs").click()
        page.get_by_role("link", name="Slowest first tokens").click()
        page.wait_for_url("**/slowest_first_tokens")
        assert page.locator("table.rows-and-columns tbody tr").count() == 44
        assert set(asked) == {"127.0.0.1"} and complaints == []
