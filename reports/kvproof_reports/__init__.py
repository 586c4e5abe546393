"""Result records and what is made of them: verdict, HTML and Markdown reports, comparison, MLflow."""

from kvproof_reports.records import RecordError, Run, RunWriter, read_run
from kvproof_reports.schema import SCHEMA_VERSION

__all__ = ["SCHEMA_VERSION", "RecordError", "Run", "RunWriter", "read_run"]
