"""Report: bench runs side by side, with what may be compared and what their shapes have in common."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from llmlab.errors import Exit, UsageError
from llmlab.report.document import Report
from llmlab.report.formats import FORMATS
from llmlab.report.regression import check_same, regressions
from llmlab.report.selection import select
from llmlab.store import Store

NOTHING = "no bench run in {path} yet. Measure one with: llmlab bench --tag laptop"


def report(
    store: Store,
    words: Sequence[str] = (),
    *,
    format: str = "table",
    output: Path | None = None,
    fail_on_regression: float | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> Exit:
    """Write the report of the runs that `words` (tags, run ids) mean to `output`, or to `out`.

    `fail_on_regression` is in percent. Returns Exit.FAILED where the second run is worse than the first by more than
    that, after saying on `err` what is. A store without bench runs is said and is no failure. Raises UsageError for
    unknown words, an `output` that cannot be written, and runs that cannot be checked for a regression, the latter
    after the report is written; StoreError.
    """
    out, err = out or sys.stdout, err or sys.stderr
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", f"Choose from: {', '.join(FORMATS)}")
    if fail_on_regression is not None and not fail_on_regression >= 0:
        raise UsageError("--fail-on-regression wants a percentage", "For example: --fail-on-regression 10")
    found = Report.of(select(store, words))
    _write(found, format, output, out)
    if not found.sides:
        # Programs read the empty report; a person reads why it is empty.
        print(NOTHING.format(path=store.path), file=err if output or format in ("csv", "json", "html") else out)
    if fail_on_regression is None:
        return Exit.OK
    check_same(found)
    worse = regressions(found, fail_on_regression)
    for line in worse:
        print(f"Worse: {line}", file=err)
    return Exit.FAILED if worse else Exit.OK


def _write(found: Report, format: str, output: Path | None, out: TextIO) -> None:
    if output is None:
        FORMATS[format](found, out)
        return
    try:
        with output.open("w", encoding="utf-8", newline="\n") as file:
            FORMATS[format](found, file)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}", "Choose another --output") from None
