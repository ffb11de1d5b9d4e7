"""The page docs/schema.md, printed from a migrated database: `python -m llmlab.store.page > docs/schema.md`."""

from sqlite_utils import Database

from llmlab.store.columns import MEANINGS, PURPOSES
from llmlab.store.schema import STEPS, migrations

_HEAD = """\
# The database

One SQLite file; `llmlab db path` says where. Printed from the code by `python -m llmlab.store.page`.

Times end in `_ns` in tables and in `_s` in views, rates in `_tokens_per_s`, sizes in `_bytes`, moments in `_utc`.
NULL means that the server did not report it or nobody could know it; it never means 0.

To look at the file with other programs: `datasette llmlab.db` and `sqlite3 llmlab.db` are right at any time. Never
open a file that is being written as immutable (`datasette -i`): its newest rows are in the `-wal` file beside it, which
is not read then. `llmlab export` makes a file without one, which may be opened as immutable and in a folder that cannot
be written. To copy a file that is in use, use `llmlab export` too, or `VACUUM INTO`.

`cells` is quick for one run (`WHERE run_id = …`), `run_summary` for one (`WHERE id = …`) and for the newest
(`ORDER BY started_utc DESC LIMIT …`), whatever the size of the file.
"""


def schema_page() -> str:
    """The page, as Markdown."""
    db = Database(memory=True)
    try:
        migrations().apply(db)
        parts = [_HEAD, *(_section(db, name) for name in MEANINGS), _steps()]
    finally:
        db.close()
    return "\n".join(parts)


def _section(db: Database, name: str) -> str:
    view = name in db.view_names()
    rows = [
        f"| `{column.name}` | {'' if view else column.type} | {MEANINGS[name][column.name]} |"
        for column in db[name].columns
    ]
    head = f"## {name} {'(view)' if view else '(table)'}\n\n{PURPOSES[name]}\n"
    return "\n".join([head, "| column | type | meaning |", "|---|---|---|", *rows, ""])


def _steps() -> str:
    return f"## Migrations\n\n{', '.join(f'`{step}`' for step in STEPS)}, in `migrations/migrations.py`.\n"


if __name__ == "__main__":
    print(schema_page(), end="")
