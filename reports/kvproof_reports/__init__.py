"""Result records and what is made of them: verdict, HTML and Markdown reports, comparison, MLflow."""

from kvproof_reports.compare import compare_implementations, compare_runs
from kvproof_reports.extras import MissingExtra
from kvproof_reports.html import render_html, write_html
from kvproof_reports.markdown import render_markdown, write_markdown
from kvproof_reports.mlflow_sink import log_run
from kvproof_reports.records import RecordError, Run, RunWriter, read_run
from kvproof_reports.schema import SCHEMA_VERSION
from kvproof_reports.verdict import matrix, subjects

__all__ = [
    "SCHEMA_VERSION",
    "MissingExtra",
    "RecordError",
    "Run",
    "RunWriter",
    "compare_implementations",
    "compare_runs",
    "log_run",
    "matrix",
    "read_run",
    "render_html",
    "render_markdown",
    "subjects",
    "write_html",
    "write_markdown",
]
