"""The Datasette plugin: pages, queries and meanings on llmlab's files, and nothing on others."""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasette.app import Datasette
from lesson_runs import SECOND, anchors, keep, lesson_calls, lesson_run, prompt_call
from web import Page

from llmlab.call import Call
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store

EVIL = "<script>alert(1)</script>|<b>\\ \n&quot;'\"{{ 7*7 }}=cmd()"
QWEN = Model(name="qwen2.5:3b", digest="aaa", quantization="Q4_K_M")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


def bench(db: Path, number: int, tag: str, waits_s: tuple[float, ...] = (1.0, 1.2, 1.5), **columns: Any) -> Run:
    calls = [*lesson_calls(number), *anchors(waits_s)]
    found = json.dumps({"findings": ["The prompt is the slow part: 7 s.", "More of it."], "marks": []})
    run = lesson_run(number, **{"tag": tag, "num_ctx": 4096, "findings_json": found, **columns})
    calls = [replace(call, model_id=QWEN.id) for call in calls]
    return keep(db, run, calls, QWEN, Machine(id=tag, os="Linux", cpu=f"Test CPU {tag}"))


def chat(db: Path, tag: str | None = "talk", **columns: Any) -> Run:
    calls = [
        Call(model_id=QWEN.id, prompt_tokens=n, prompt_tokens_estimate=2 * n, ttft_ns=n * SECOND, **columns)
        for n in (100, 300)
    ]
    return keep(db, Run(command="chat", tag=tag), calls, QWEN)


async def opened(*paths: Path, **settings: Any) -> Any:
    """Datasette on these files, started."""
    datasette = Datasette([str(path) for path in paths], **settings)
    await datasette.invoke_startup()
    return datasette


async def get(path: Path, address: str, **settings: Any) -> Any:
    return await (await opened(path, **settings)).client.get(address)


async def test_the_start_page_lists_bench_runs_with_boxes(db: Path) -> None:
    first, second = bench(db, 1, "laptop"), bench(db, 2, "desktop", started_utc="2030-01-01T10:20:30.000Z")
    chat(db)
    response = await get(db, "/lab/-/runs")
    assert response.status_code == 200
    page = Page(response.text)
    head, *rows = page.tables[0]
    assert head[1:] == ["tag", "when (UTC)", "model", "window", "machine", "calls", "ended", "findings"]
    assert rows[0][1:8] == [
        *("desktop", "2030-01-01 10:20", "qwen2.5:3b Q4_K_M", "4,096", "Test CPU desktop, Linux", "23", "ok")
    ]
    assert rows[0][8] == "The prompt is the slow part: 7 s.More of it."
    assert [row[1] for row in rows] == ["desktop", "laptop"]
    assert re.findall(r'name="run" value="(\w+)"', response.text) == [second.id, first.id]


async def test_all_runs_are_shown_on_demand_and_only_bench_runs_have_boxes(db: Path) -> None:
    bench(db, 1, "laptop")
    chat(db)
    response = await get(db, "/lab/-/runs?all=1")
    rows = Page(response.text).tables[0][1:]
    assert sorted((row[1], row[3]) for row in rows) == [("laptop", "bench"), ("talk", "chat")]
    assert response.text.count('type="checkbox"') == 1


async def test_more_runs_than_a_page_holds_are_reached_by_links(db: Path) -> None:
    with Store.open(db) as store:
        for n in range(230):
            minute = f"2030-01-01T{n // 60:02d}:{n % 60:02d}:00.000Z"
            store.start_run(Run(command="bench", tag=f"n{n}", started_utc=minute))
    datasette, seen, address = await opened(db), [], "/lab/-/runs"
    for _ in range(3):
        page = Page((await datasette.client.get(address)).text)
        seen += [row[1] for row in page.tables[0][1:]]
        address = next((link for link, text in page.links.items() if text == "Older runs"), "")
    assert seen == [f"n{n}" for n in range(229, -1, -1)] and address == ""


@pytest.mark.parametrize("address", ["/", "/lab/-/runs"])
async def test_a_file_with_nothing_but_llmlab_starts_with_its_runs(db: Path, address: str) -> None:
    bench(db, 1, "laptop")
    response = await (await opened(db)).client.get(address, follow_redirects=True)
    assert response.status_code == 200 and "Compare the ticked runs" in response.text


async def test_an_empty_file_says_how_to_fill_it(db: Path) -> None:
    Store.open(db).close()
    datasette = await opened(db)
    for address in ("/lab/-/runs", "/lab/-/runs?all=1"):
        response = await datasette.client.get(address)
        assert response.status_code == 200 and "llmlab bench --tag laptop" in response.text
    for address in ("/lab", "/lab/runs", "/lab/calls", "/lab/cells", "/lab/run_summary"):
        assert (await datasette.client.get(address)).status_code == 200


async def test_compare_puts_what_differs_first_then_tables_charts_and_shape(db: Path) -> None:
    ids = [bench(db, number, tag, (1, 1, 1)).id for number, tag in ((1, "laptop"), (2, "desktop"))]
    response = await get(db, f"/lab/-/compare?run={ids[0]}&run={ids[1]}")
    assert response.status_code == 200
    text = " ".join(Page(response.text).text.split())
    places = [
        text.index(word)
        for word in ("May I compare?", "Prompt length: laptop / desktop", "How long a prompt", "Shape:")
    ]
    assert places == sorted(places)
    assert "same shape" in text and "differs" in text
    assert re.findall(r'data-chart="(\w+)"', response.text) == ["ttft", "speeds", "cold_warm", "users"]


async def test_three_runs_are_compared_too(db: Path) -> None:
    ids = [bench(db, number, tag).id for number, tag in ((1, "a"), (2, "b"), (1, "c"))]
    response = await get(db, "/lab/-/compare?" + "&".join(f"run={run_id}" for run_id in ids))
    assert [response.text.count(f'class="series run-{i}"') > 0 for i in range(4)] == [True, True, True, False]


async def test_a_run_leads_to_its_calls_and_they_lead_back(db: Path) -> None:
    run = bench(db, 1, "laptop")
    datasette = await opened(db)
    page = Page((await datasette.client.get(f"/lab/-/run/{run.id}")).text)
    calls = next(link for link, text in page.links.items() if text == "calls")
    rows = Page((await datasette.client.get(calls)).text)
    assert f"/lab/-/run/{run.id}" in rows.links and f"laptop {run.id[-6:]}" in rows.links.values()
    rates = next(link for link, text in page.links.items() if text == "in seconds and tokens/s")
    assert f"/lab/-/run/{run.id}" in Page((await datasette.client.get(rates)).text).links
    assert f"/lab/-/run/{run.id}" in Page((await datasette.client.get("/lab/run_summary")).text).links


async def test_a_run_that_measured_nothing_still_has_a_page(db: Path) -> None:
    run = chat(db)
    response = await get(db, f"/lab/-/run/{run.id}")
    assert response.status_code == 200 and "This is a chat run" in response.text
    bad = await get(db, f"/lab/-/compare?run={run.id}&run={bench(db, 1, 'laptop').id}")
    assert bad.status_code == 400 and "is a chat run and has nothing to compare" in bad.text


@pytest.mark.parametrize(
    "address",
    [
        "/lab/-/run/01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "/lab/-/run/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/lab/-/run/' OR 1=1 --",
        "/lab/-/compare?run=laptop&run=nothing",
        "/nowhere/-/runs",
        "/nowhere/-/compare?run=a&run=b",
    ],
)
async def test_what_is_not_there_is_404_in_words(db: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench(db, 1, "laptop")
    response = await get(db, address)
    assert response.status_code == 404
    assert "This page has nothing to show" in response.text and "<script>alert" not in response.text
    assert str(db.parent) not in response.text
    assert capsys.readouterr() == ("", "")


async def test_one_ticked_run_is_shown_and_none_leads_back(db: Path) -> None:
    run = bench(db, 1, "laptop")
    datasette = await opened(db)
    assert (await datasette.client.get(f"/lab/-/compare?run={run.id}")).headers["location"] == f"/lab/-/run/{run.id}"
    assert (await datasette.client.get("/lab/-/compare")).headers["location"] == "/lab/-/runs"


async def test_other_databases_are_left_alone(db: Path, tmp_path: Path) -> None:
    bench(db, 1, "laptop")
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.executescript("CREATE TABLE runs (id TEXT, run_id TEXT); INSERT INTO runs VALUES ('a', 'b')")
        connection.executescript("CREATE TABLE calls (id TEXT)")
    datasette = await opened(db, other)
    start = await datasette.client.get("/")
    assert start.status_code == 200 and "Compare the ticked runs" not in start.text
    rows = (await datasette.client.get("/other/runs")).text
    assert "/-/run/" not in rows and "rows.css" not in rows and "column-descriptions" not in rows
    assert (await datasette.client.get("/other/slowest_first_tokens")).status_code == 404
    assert "other" in (await datasette.client.get("/other/-/runs")).text
    assert (await datasette.client.get("/other/-/runs")).status_code == 404
    assert "rows.css" in (await datasette.client.get("/lab/runs")).text


async def test_a_file_that_cannot_be_opened_is_datasettes_to_complain_of(db: Path, tmp_path: Path) -> None:
    bench(db, 1, "laptop")
    (tmp_path / "broken.db").write_text("no database" * 100)
    datasette = await opened(db, tmp_path / "broken.db", tmp_path / "missing.db")
    assert (await datasette.client.get("/lab/-/runs")).status_code == 200
    assert (await datasette.client.get("/broken/-/runs")).status_code == 404


async def test_a_stranger_with_a_table_of_migrations_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        for table in ("runs (id)", "calls (id)", "_sqlite_migrations (migration_set)"):
            connection.execute(f"CREATE TABLE {table}")
        connection.execute("INSERT INTO _sqlite_migrations VALUES ('somebody else')")
    assert (await get(other, "/other/-/runs")).status_code == 404


async def test_tables_and_columns_are_described_with_their_units(db: Path) -> None:
    bench(db, 1, "laptop")
    datasette = await opened(db)
    calls = Page((await datasette.client.get("/lab/calls")).text).text
    assert "NULL is not reported, which is not 0" in calls
    rates = Page((await datasette.client.get("/lab/call_rates")).text).text
    assert "request written → first piece of thinking or answer, s" in rates
    assert "text/css" in (await datasette.client.get("/-/static-plugins/llmlab/rows.css")).headers["content-type"]
    facets = (await datasette.client.get("/lab/calls.json")).json()["facet_results"]
    assert sorted(facets) == ["cut", "experiment", "outcome", "purpose"]


async def query(db: Path, name: str, **arguments: str) -> list[dict[str, Any]]:
    datasette = await opened(db)
    response = await datasette.client.get(f"/lab/{name}.json", params={"_shape": "array", **arguments})
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()
    return rows


async def test_slowest_first_tokens(db: Path) -> None:
    bench(db, 1, "laptop")
    rows = await query(db, "slowest_first_tokens")
    assert [round(row["ttft_s"], 1) for row in rows[:3]] == [194.5, 194.0, 60.0]
    assert rows[2]["model"] == "qwen2.5:3b" and rows[2]["unexplained_s"] == 0
    assert [row["ttft_s"] - row["prefill_s"] - row["unexplained_s"] for row in rows[:1]] == [0]


async def test_calls_that_were_cut(db: Path) -> None:
    chat(db, cut="proved", cut_evidence="refused with truncate: false")
    chat(db, cut="no")
    rows = await query(db, "calls_that_were_cut")
    assert sorted((row["cut"], row["sent_tokens_estimate"], row["read_tokens"]) for row in rows) == [
        ("proved", 200, 100),
        ("proved", 600, 300),
    ]


async def test_estimate_error_by_model_leaves_cut_calls_out(db: Path) -> None:
    chat(db)
    chat(db, cut="proved")
    (row,) = await query(db, "estimate_error_by_model")
    assert row["calls"] == 2 and row["counted_per_estimated"] == 0.5 and row["mean_error_percent"] == 100


async def test_drift_inside_a_run(db: Path) -> None:
    run = bench(db, 1, "laptop", started_utc="2030-01-01T00:00:00.000Z")
    bench(db, 2, "desktop", started_utc="2031-01-01T00:00:00.000Z")
    rows = await query(db, "drift_inside_a_run", run=run.id[-6:])
    assert [row["run_id"] for row in rows] == [run.id] * 3
    assert [row["wait_to_first"] for row in rows] == [1, 1.2, 1.5]
    newest = await query(db, "drift_inside_a_run", run="")
    assert len(newest) == 3 and newest[0]["run_id"] != run.id


async def test_bench_against_everyday_chats(db: Path) -> None:
    bench(db, 1, "laptop")
    chat(db)
    rows = await query(db, "bench_against_everyday_chats")
    assert [(r["prompt_tokens_from"], r["bench_calls"], r["chat_calls"]) for r in rows] == [
        *((0, 1, 1), (256, 1, 1), (2048, 1, 0))
    ]
    assert (rows[0]["bench_ttft_s"], rows[0]["chat_ttft_s"]) == (7, 100)
    assert rows[0]["bench_decode_tokens_per_s"] == pytest.approx(8.6, rel=1e-3)


async def test_every_query_can_be_opened_as_a_page(db: Path) -> None:
    bench(db, 1, "laptop")
    datasette = await opened(db)
    links = [link for link in Page((await datasette.client.get("/lab/-/runs")).text).links if link.count("/") == 2]
    assert len([link for link in links if (link.startswith("/lab/"))]) == 5
    for link in links:
        assert (await datasette.client.get(link)).status_code == 200


async def test_what_others_chose_the_text_of_is_shown_as_text(db: Path) -> None:
    evil = Model(name=EVIL, digest=EVIL, quantization=EVIL)
    calls = [*lesson_calls(1), prompt_call(5, 5, 1, 1, 1, outcome="error", error=EVIL, flags=EVIL, cut="proved")]
    calls = [replace(call, model_id=evil.id, cut_evidence=EVIL) for call in calls]
    found = json.dumps({"findings": [EVIL, 7, None]})
    runs = [
        keep(
            db,
            lesson_run(1, tag=EVIL + n, server_kind=EVIL, findings_json=found),
            [replace(call, id=call.id + n) for call in calls],
            evil,
            Machine(id=n, cpu=EVIL),
        )
        for n in "ab"
    ]
    datasette = await opened(db)
    for address in (
        *("/lab/-/runs", "/lab/-/runs?all=1", f"/lab/-/run/{runs[0].id}", "/lab/runs", "/lab/calls", "/lab/models"),
        *(f"/lab/-/compare?run={runs[0].id}&run={runs[1].id}", "/lab/calls_that_were_cut", "/lab/call_rates"),
        *("/lab/run_summary", "/lab/machines", "/lab/cells"),
    ):
        response = await datasette.client.get(address)
        assert response.status_code == 200, address
        assert "<script>alert" not in response.text and "<b>" not in response.text, address
        assert "49" not in re.findall(r"[&;]#34;(\d\d)=cmd", response.text)


async def test_a_file_that_is_being_written_reads_consistently(db: Path) -> None:
    run = bench(db, 1, "laptop")
    datasette = await opened(db)
    with Store.open(db) as store:
        for n in range(40):
            store.add(Call(run_id=run.id, purpose="anchor", ttft_ns=SECOND, seq=100 + n))
        for address in ("/lab/-/runs", f"/lab/-/run/{run.id}"):
            assert (await datasette.client.get(address)).status_code == 200
        store.flush()
        rows = Page((await datasette.client.get("/lab/-/runs")).text).tables[0]
        assert rows[1][6] == str(len(store.calls(run.id)))


async def test_an_immutable_copy_shows_the_same(db: Path, tmp_path: Path) -> None:
    run = bench(db, 1, "laptop")
    response = await (await opened(immutables=[str(db)])).client.get(f"/lab/-/run/{run.id}")
    assert response.status_code == 200 and 'data-chart="ttft"' in response.text


async def test_rows_that_an_immutable_file_hides_are_pointed_out(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench(db, 1, "laptop")
    with Store.open(db) as store:
        store.start_run(Run(command="bench", tag="new"))
        store.flush()
        await (await opened(immutables=[str(db)])).client.get("/lab/-/runs")
    assert f"llmlab browse --db {db}" in capsys.readouterr().err


async def test_a_file_of_another_schema_is_a_clear_page(db: Path) -> None:
    bench(db, 1, "laptop")
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmlab', 'm999', '')"
        )
    response = await get(db, "/lab/-/runs")
    assert response.status_code == 400 and "newer llmlab" in response.text and str(db.parent) not in response.text
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("DELETE FROM _sqlite_migrations WHERE name IN ('m999', 'm002_views')")
    response = await get(db, "/lab/-/runs")
    assert response.status_code == 400 and "older llmlab" in response.text and "llmlab browse" in response.text


async def test_what_a_visitor_may_not_see_is_refused(db: Path) -> None:
    run = bench(db, 1, "laptop")
    metadata = {"databases": {"lab": {"allow": {"id": "root"}}}}
    for address in ("/lab/-/runs", f"/lab/-/run/{run.id}", f"/lab/-/compare?run={run.id}&run={run.id[-6:]}"):
        response = await get(db, address, metadata=metadata)
        assert response.status_code == 403 and "laptop" not in response.text


async def test_pages_respect_a_base_address(db: Path) -> None:
    run = bench(db, 1, "laptop")
    datasette = await opened(db, settings={"base_url": "/data/"})
    text = (await datasette.client.get("/lab/-/runs")).text
    assert 'action="/data/lab/-/compare"' in text and f'href="/data/lab/-/run/{run.id}"' in text
    assert (await datasette.client.get("/")).headers["location"] == "/data/lab/-/runs"
