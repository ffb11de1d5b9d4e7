"""The schema: made with explicit types, moved forward step by step, never half, never another program's file."""

import shutil
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from llmlab.call import CACHE_STATES, CUTS, OUTCOMES, PURPOSES, Call
from llmlab.errors import StoreError
from llmlab.run import Run
from llmlab.store import Store
from llmlab.store.columns import MEANINGS
from llmlab.store.columns import PURPOSES as TABLE_PURPOSES
from llmlab.store.page import schema_page
from llmlab.store.rows import CALL_COLUMNS, MACHINE_COLUMNS, MODEL_COLUMNS, RUN_COLUMNS
from llmlab.store.schema import STEPS, migrations

ROOT = Path(__file__).parent.parent


def migrated() -> Database:
    db = Database(memory=True)
    migrations().apply(db)
    return db


def old_file(path: Path, stop_before: str) -> None:
    with closing(Database(path).conn) as connection:
        migrations().apply(Database(connection), stop_before=stop_before)


def test_the_steps_written_down_in_the_store_are_the_migrations():
    assert tuple(step.name for step in migrations().pending(Database(memory=True))) == STEPS


@pytest.mark.parametrize("stop_before", STEPS[1:])
def test_an_older_file_is_brought_up_to_date_and_keeps_its_rows(tmp_path, stop_before):
    path = tmp_path / "old.db"
    old_file(path, stop_before)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO runs (id, command, started_utc) VALUES ('R', 'bench', '2025-01-01T00:00:00Z')")
    with Store.open(path) as store:
        assert [run.id for run in store.runs()] == ["R"]
        assert set(MEANINGS) <= {*store.db.table_names(), *store.db.view_names()}


@pytest.mark.parametrize("stop_before", STEPS[1:])
def test_an_older_file_is_read_without_changing_it(tmp_path, stop_before):
    path = tmp_path / "old.db"
    old_file(path, stop_before)
    before = path.read_bytes()
    with Store.read(path) as store:
        assert store.db["run_summary"].exists()
        assert store.runs() == []
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["old.db"]


def test_types_are_declared_so_a_first_row_of_nulls_makes_no_text_column(tmp_path):
    with Store.open(tmp_path / "lab.db") as store:
        run = Run(command="bench")
        store.start_run(run)
        for size in (None, 9, 100, 27):
            store.add(Call(run_id=run.id, ttft_ns=size))
        store.flush()
        rows = store.db.execute("SELECT typeof(ttft_ns), ttft_ns FROM calls ORDER BY ttft_ns DESC").fetchall()
    assert rows == [("integer", 100), ("integer", 27), ("integer", 9), ("null", None)]


@pytest.mark.parametrize(
    ("table", "columns"),
    [("calls", CALL_COLUMNS), ("runs", RUN_COLUMNS), ("models", MODEL_COLUMNS), ("machines", MACHINE_COLUMNS)],
)
def test_records_and_tables_have_the_same_columns(table, columns):
    names = [column.name for column in migrated()[table].columns]
    assert set(names) - {"class"} == {*columns, "id"}


@pytest.mark.parametrize("table", ["calls", "runs", "models", "machines", "texts"])
def test_every_column_has_a_type(table):
    assert {column.type for column in migrated()[table].columns} <= {"TEXT", "INTEGER", "REAL"}


@pytest.mark.parametrize(
    ("column", "words"),
    [("purpose", PURPOSES), ("cache_state", CACHE_STATES), ("outcome", OUTCOMES), ("cut", CUTS)],
)
def test_closed_word_lists_are_checked(column, words):
    db = migrated()
    row = {"purpose": "answer", "cache_state": "cold", "outcome": "ok", "started_utc": "2025-01-01T00:00:00Z"}
    for word in words:
        db["calls"].insert({**row, "id": word, column: word})
    assert db["calls"].count == len(words)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        db["calls"].insert({**row, "id": "x", column: "another"})


@pytest.mark.parametrize(
    "column", [c.name for t in ("calls",) for c in migrated()[t].columns if c.type in ("INTEGER", "REAL")]
)
def test_negative_figures_are_refused(column):
    row = {"id": "x", "purpose": "answer", "cache_state": "cold", "outcome": "ok", "started_utc": "2025"}
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        migrated()["calls"].insert({**row, column: -1})


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "old.db"
    old_file(path, STEPS[1])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE call_rates (x)")  # takes the name of a view
    before = dump(path)
    with pytest.raises(StoreError, match=r"left as it is.*call_rates"):
        Store.open(path)
    with pytest.raises(StoreError, match="call_rates"):
        Store.read(path)
    assert dump(path) == before


def test_a_view_made_by_hand_before_its_step_was_recorded_is_made_anew(tmp_path):
    path = tmp_path / "half.db"
    old_file(path, STEPS[1])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIEW call_rates AS SELECT 1 AS one")
    with Store.open(path) as store:
        assert "ttft_s" in store.db["call_rates"].columns_dict


def test_a_half_made_file_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "half.db"
    with closing(Database(path).conn) as connection:
        migrations().ensure_migrations_table(Database(connection))
        connection.execute("CREATE TABLE runs (id TEXT PRIMARY KEY)")
    before = path.read_bytes()
    for opened in (Store.open, Store.read):
        with pytest.raises(StoreError, match=r"half made.*Keep a copy"):
            opened(path)
    assert path.read_bytes() == before


def test_a_newer_file_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "new.db"
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmlab', 'm999_later', '2030')"
        )
        connection.execute("PRAGMA journal_mode = DELETE")
    before = path.read_bytes()
    for opened in (Store.open, Store.read):
        with pytest.raises(
            StoreError, match=rf"newer llmlab \(schema {len(STEPS) + 1} with m999_later, this one knows"
        ):
            opened(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "photos.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE photos (id INTEGER)")
    before = path.read_bytes()
    for opened in (Store.open, Store.read):
        with pytest.raises(StoreError, match=r"is not llmlab's: it holds photos"):
            opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database, but longer than a header" * 30, b"SQLite format 3\0" + b"\xff" * 4080]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for opened in (Store.open, Store.read):
        with pytest.raises(StoreError, match=r"notes\.txt is (not a SQLite database|damaged)"):
            opened(path)
    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_database(tmp_path):
    path = tmp_path / "lab.db"
    path.touch()
    with Store.read(path) as store:
        assert store.runs() == []
    assert path.stat().st_size == 0
    with Store.open(path) as store:
        assert store.runs() == []


def test_sqlite_utils_migrate_finds_and_applies_the_migrations(tmp_path):
    path = tmp_path / "lab.db"
    done = subprocess.run(
        [sys.executable, "-m", "sqlite_utils", "migrate", str(path), str(ROOT / "migrations")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Store.read(path) as store:
        assert store.runs() == []


def test_the_wheel_holds_the_migrations_where_the_store_looks(tmp_path):
    """Laid out as the wheel says, with the checkout out of reach."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shutil.copytree(ROOT / "llmlab", tmp_path / "llmlab", ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in wheel["force-include"].items():
        shutil.copytree(ROOT / source, tmp_path / target)
    code = "from llmlab.store import schema; print(schema.__file__, len(schema.migrations()._migrations))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "llmlab" / "store" / "schema.py"), str(len(STEPS))]


def test_every_column_of_every_table_and_view_is_explained():
    db = migrated()
    assert list(MEANINGS) == list(TABLE_PURPOSES)
    for name, meanings in MEANINGS.items():
        assert list(meanings) == [column.name for column in db[name].columns]


def test_the_schema_page_is_current():
    assert (ROOT / "docs" / "schema.md").read_text(encoding="utf-8") == schema_page(), (
        "print it anew: python -m llmlab.store.page > docs/schema.md"
    )


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())
