"""What a worker answers, read by its judge: a stranger's code may have had a hand in it.

A report is of the case that was asked for, has every phase that a case has, and holds what a record can hold: else a
case would vanish, or a record of another implementation be written, or the judge fall over its worker's words.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from kvproof_reports.schema import SCHEMA_VERSION
from kvproof_reports.validate import faults
from kvproof_suites.isolation import wire
from kvproof_suites.isolation.death import CRASHED, TAMPERED, Death
from kvproof_suites.select import implementation_of

OUTCOMES = ("passed", "failed", "skipped")


def read_answer(item: pytest.Item, answer: wire.Message) -> list[pytest.TestReport]:
    """
    Raises:
        Death: it tells that the worker can't be trusted any more, or is no answer.
    """
    if answer.get("went_on"):
        raise Death(CRASHED, "crashed: it forked, and the child went on in place of the worker")
    if replaced := answer.get("replaced"):
        raise Death(TAMPERED, f"tampered: it replaced {', '.join(map(str, replaced))}, by which it is judged")
    try:
        reports = [read_report(item, data) for data in answer["reports"]]
        require_whole(reports)
        for report in reports:
            require_recordable(item, report)
    except (KeyError, TypeError, AttributeError, ValueError, AssertionError) as error:
        raise Death(CRASHED, f"crashed: its answer is no report: {type(error).__name__}: {error}") from None
    return reports


def read_report(item: pytest.Item, data: wire.Message) -> pytest.TestReport:
    """A report of ``item``, whatever test the worker says it is of; JSON has no tuples, and pytest wants some."""
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data | {"nodeid": item.nodeid})
    report.location = item.location
    own = dict(item.user_properties)
    told = [(str(name), value) for name, value in report.user_properties if name not in own | {"kvproof_status": ""}]
    report.user_properties = [*item.user_properties, *told]
    report.sections = [(str(title), str(text)) for title, text in report.sections]
    if isinstance(report.longrepr, list):
        report.longrepr = tuple(report.longrepr)
    return report


def require_whole(reports: list[pytest.TestReport]) -> None:
    if strange := {report.outcome for report in reports}.difference(OUTCOMES):
        raise ValueError(f"outcome {strange.pop()!r} is not one of {', '.join(OUTCOMES)}")
    phases = [report.when for report in reports]
    begun = bool(reports) and reports[0].outcome == "passed"
    if phases != (["setup", "call", "teardown"] if begun else ["setup", "teardown"]):
        raise ValueError(f"a case has setup, call and teardown, and these are {phases}")


def require_recordable(item: pytest.Item, report: pytest.TestReport) -> None:
    properties: dict[str, Any] = dict(report.user_properties)
    for number in (report.duration, properties.get("kvproof_error_to_bound", 0.0)):
        if not isinstance(number, int | float) or math.isnan(number) or number < 0:
            raise ValueError(f"{number!r} is no duration, and no ratio")
    for num_bytes in (properties.get("kvproof_peak_bytes", 0), properties.get("kvproof_peak_device_bytes", 0)):
        if type(num_bytes) is not int or num_bytes < 0:
            raise ValueError(f"{num_bytes!r} is no number of bytes")
    about = {"schema_version": SCHEMA_VERSION, "kind": "benchmark", "run_id": "-", "record_id": "-"}
    for row in properties.get("kvproof_records", ()):
        if row["implementation"] != implementation_of(item):
            raise ValueError(f"a row of {row['implementation']!r}")
        if wrong := faults({**about, "time_utc": datetime.now(UTC).isoformat(), **row}):
            raise ValueError(wrong[0])
