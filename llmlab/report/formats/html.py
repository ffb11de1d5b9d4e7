"""HTML: the whole report with its charts in one file that loads nothing, for the browser, for mail and for paper."""

from html import escape
from typing import TextIO

from llmlab import __version__
from llmlab.report.document import Report

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{styles}
body {{ margin: 0; }}
.page {{ max-width: 78rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; min-height: 100vh; box-sizing: border-box; }}
.page footer {{ color: var(--soft); font-size: .85rem; margin-top: 3rem; }}
@media print {{ .page {{ padding: 0; max-width: none; }} }}
</style>
</head>
<body class="llmlab">
<div class="page">
<h1>{title}</h1>
{body}
<footer>Measured with llmlab {version}. Compare the shapes, not the values.</footer>
</div>
</body>
</html>
"""


def write_html(report: Report, out: TextIO) -> None:
    """Print the report as one HTML file."""
    from llmlab.report.markup import body, styles

    title = " against ".join(side.label for side in report.sides) or "no bench run yet"
    out.write(PAGE.format(title=escape(f"llmlab: {title}"), styles=styles(), body=body(report), version=__version__))
