"""The forms a report is written in, by name."""

from collections.abc import Callable
from typing import TextIO

from llmlab.report.document import Report
from llmlab.report.formats.csv import write_csv
from llmlab.report.formats.html import write_html
from llmlab.report.formats.json import write_json
from llmlab.report.formats.md import write_md
from llmlab.report.formats.table import write_table

FORMATS: dict[str, Callable[[Report, TextIO], None]] = {
    "table": write_table,
    "md": write_md,
    "csv": write_csv,
    "json": write_json,
    "html": write_html,
}
