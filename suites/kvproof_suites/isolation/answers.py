"""What a worker answers, read by its judge: a stranger's code may have had a hand in it.

A report is of the case that was asked for, has every phase that a case has, and holds what a record can hold: else a
case would vanish, or a record of another implementation be written, or the judge fall over its worker's words.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kvproof_reports.content import MAX_LINE_BYTES
from kvproof_reports.schema import SCHEMA_VERSION
from kvproof_reports.validate import TYPES, faults
from kvproof_suites.isolation import wire
from kvproof_suites.isolation.death import CRASHED, TAMPERED, Death
from kvproof_suites.select import implementation_of

OUTCOMES = ("passed", "failed", "skipped")
PROVIDED = ("allocator", "kernel", "allocator + kernel")
KEPT = (
    *("$report_type", "when", "outcome", "longrepr", "wasxfail", "sections"),
    *("duration", "start", "stop", "user_properties"),
)
"""Of what a report is made of; anything else that is sent would become an attribute of it, or a method."""
MOST_TOLD = 300
"""Characters of what is wrong with an answer."""


def require_loaded(told: wire.Message) -> None:
    """
    Raises:
        Death: what it tells of what it has loaded can't be of an implementation.
    """
    provides, texts = told.get("provides"), [told.get("version"), told.get("expectations")]
    if provides not in PROVIDED or not all(text is None or isinstance(text, str) for text in texts):
        raise Death(CRASHED, f"crashed: it told {str(told)[:MOST_TOLD]} of what it has loaded")


def read_answer(item: pytest.Item, answer: wire.Message) -> list[pytest.TestReport]:
    """
    Raises:
        Death: it tells that the worker can't be trusted any more, or is no answer.
    """
    if answer.get("went_on"):
        raise Death(CRASHED, "crashed: it forked, and the child went on in place of the worker")
    if replaced := answer.get("replaced"):
        names = ", ".join(map(str, replaced)) if isinstance(replaced, list) else str(replaced)
        raise Death(TAMPERED, f"tampered: it replaced {names[:MOST_TOLD]}, by which it is judged")
    try:
        reports = [read_report(item, data) for data in answer["reports"]]
        require_whole(reports)
        for report in reports:
            require_tellable(report)
            require_recordable(item, report)
    except Exception as error:  # pytest's own code reads what was sent, and prints it: that may raise anything
        told = " ".join(str(error).split())[:MOST_TOLD]
        raise Death(CRASHED, f"crashed: its answer is no report: {type(error).__name__}: {told}") from None
    return reports


def read_report(item: pytest.Item, data: wire.Message) -> pytest.TestReport:
    """A report of ``item``, whatever test the worker says it is of; JSON has no tuples, and pytest wants some."""
    own = {"nodeid": item.nodeid, "location": item.location, "keywords": dict.fromkeys(item.keywords, 1)}
    kept = {name: data[name] for name in KEPT if name in data} | own
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=kept)
    known = {*dict(item.user_properties), "kvproof_status"}
    told = [(str(name), value) for name, value in report.user_properties if str(name) not in known]
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


def require_tellable(report: pytest.TestReport) -> None:
    """pytest prints it, sums it up, and makes a file for JUnit of it: where it can't, it ends the run."""
    by_reason = report.skipped and not hasattr(report, "wasxfail")
    if by_reason != isinstance(report.longrepr, tuple):
        raise ValueError(f"a test that is {report.outcome}, and {type(report.longrepr).__name__} to say why")
    _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
    crash = getattr(report.longrepr, "reprcrash", None)
    for text in (report.longreprtext, reason, getattr(report, "wasxfail", ""), crash.message if crash else ""):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")


def require_recordable(item: pytest.Item, report: pytest.TestReport) -> None:
    properties: dict[str, Any] = dict(report.user_properties)
    times = [("number", number) for number in (report.duration, report.start, report.stop)]
    for kind, number in [*times, ("ratio", properties.get("kvproof_error_to_bound", 0.0))]:
        expected, accepts = TYPES[kind]
        if not accepts(number):
            raise ValueError(f"{number!r} is not {expected}")
    for num_bytes in (properties.get("kvproof_peak_bytes", 0), properties.get("kvproof_peak_device_bytes", 0)):
        if type(num_bytes) is not int or num_bytes < 0:
            raise ValueError(f"{num_bytes!r} is no number of bytes")
    about = {"schema_version": SCHEMA_VERSION, "kind": "benchmark", "run_id": "-", "record_id": "-"}
    for row in properties.get("kvproof_records", ()):
        if row["implementation"] != implementation_of(item):
            raise ValueError(f"a row of {row['implementation']!r}")
        if wrong := faults({**about, "time_utc": datetime.now(UTC).isoformat(), **row}):
            raise ValueError(wrong[0])
        if (size := len(json.dumps(row))) > MAX_LINE_BYTES:
            raise ValueError(f"a row of {size:,} bytes")
