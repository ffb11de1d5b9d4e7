"""Write chosen runs to a small database of their own."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from llmlab.errors import UsageError
from llmlab.store import Store
from llmlab.store.connection import BUSY_TIMEOUT_S, open_writable, readable
from llmlab.store.fault import store_error
from llmlab.store.merge import Copied, attached, copy_rows


def export_runs(store: Store, run_ids: Sequence[str], output: Path) -> Copied:
    """Write the runs, with their machines, models, calls and texts, to the new file `output`.

    The file is whole or not there, needs no -wal file beside it, and may be opened read-only anywhere.
    """
    if output.exists():
        raise UsageError(f"{output} is there already", "Name a new file")
    store.flush()
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        copied = _write(store, run_ids, draft)
        draft.replace(output)
    except OSError as error:
        raise store_error(output, error) from None
    finally:
        for suffix in ("", "-wal", "-shm"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    return copied


def _write(store: Store, run_ids: Sequence[str], draft: Path) -> Copied:
    with closing(open_writable(draft, BUSY_TIMEOUT_S)) as connection:
        with readable(store.path) as uri, attached(draft, uri, name=store.path) as target:
            target.execute("CREATE TEMP TABLE wanted (run_id TEXT PRIMARY KEY)")
            target.executemany("INSERT INTO wanted VALUES (?)", [(run_id,) for run_id in dict.fromkeys(run_ids)])
            copied = copy_rows(target, wanted=True)
        connection.execute("PRAGMA journal_mode = DELETE")
    return copied
