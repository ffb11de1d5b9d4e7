"""Export: a small database of a few runs, to pass on."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from llmlab.figures import format_count
from llmlab.store import Store
from llmlab.store.export import export_runs


def export(db: Path, words: Sequence[str], output: Path, *, texts: bool = False, stream: TextIO | None = None) -> None:
    """Write the runs that `words` (ids, ends of ids, tags) mean to the new file `output` and say so on `stream`.

    Prompts and answers are left out unless `texts` asks for them. Raises UsageError where a word means no run or
    `output` is there already, StoreError where one of the files cannot be read or written.
    """
    with Store.read(db) as store:
        run_ids = list(dict.fromkeys(store.find_run(word).id for word in words))
        copied = export_runs(store, run_ids, output, texts=texts)
    kept = f", {_counted(copied.texts, 'text')}" if texts else ", no texts"
    line = f"{output}: {_counted(copied.runs, 'run')}, {_counted(copied.calls, 'call')}{kept}"
    print(line, file=stream or sys.stderr)


def _counted(n: int, noun: str) -> str:
    return f"{format_count(n)} {noun}{'' if n == 1 else 's'}"
