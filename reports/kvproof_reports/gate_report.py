"""A gate's verdict for a terminal, for programs (JSON), for CI servers (JUnit) and for a step summary (Markdown)."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvproof_reports.figures import plural
from kvproof_reports.gate import Compared, Gate
from kvproof_reports.gate_rules import FAIL, WARN
from kvproof_reports.markdown import escape, table

COLUMNS = ("result", "rule", "implementation", "where", "what")
PASS = "pass"
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SHOWN = 50
"""Rows of a step summary, which may not grow without bounds."""


def rows(gate: Gate) -> list[tuple[str, str, str, str, str]]:
    """A row for each finding, failures first; then each benchmark without one; then the laws."""
    ordered = sorted(gate.findings, key=lambda finding: (FAIL, WARN).index(finding.action))
    found = [(one.action, one.rule.replace("_", " "), one.implementation, one.where, one.what) for one in ordered]
    quiet = [(PASS, one.told.answer, one.implementation, one.where, one.what) for one in _without_finding(gate)]
    laws: dict[str, list[int]] = {}
    for (name, _), number in gate.unchanged.items():
        laws.setdefault(name, []).append(number)
    held = [
        (PASS, "as before", name, plural(len(numbers), "law"), plural(sum(numbers), "test"))
        for name, numbers in laws.items()
    ]
    return [*found, *quiet, *held]


def _without_finding(gate: Gate) -> list[Compared]:
    about = {(finding.implementation, finding.where) for finding in gate.findings}
    return [one for one in gate.compared if (one.implementation, one.where) not in about]


def as_object(gate: Gate) -> dict[str, Any]:
    """One JSON document."""
    return {
        "failed": gate.failed,
        "verdict": gate.verdict,
        "findings": [asdict(finding) for finding in gate.findings],
        "benchmarks": [
            {
                "implementation": one.implementation,
                "where": one.where,
                "before_ms": one.before["median_ms"],
                "after_ms": one.after["median_ms"],
                "before_samples": one.before["num_samples"],
                "after_samples": one.after["num_samples"],
                **one.told.as_object(),
            }
            for one in gate.compared
        ],
        "unchanged_tests": [
            {"implementation": name, "law": law, "tests": number} for (name, law), number in gate.unchanged.items()
        ],
        "also": dict(gate.also),
    }


def json_text(gate: Gate) -> str:
    return json.dumps(as_object(gate), indent=2) + "\n"


def junit(gate: Gate) -> str:
    """JUnit XML: a test case for each finding, each benchmark that was compared, each law that held as before. What
    only warns passes, and says so in its output."""
    suite = ET.Element("testsuite", name="kvproof gate")
    for result, rule, implementation, where, what in rows(gate):
        case = ET.SubElement(
            suite, "testcase", classname=_xml(f"gate.{implementation}"), name=_xml(f"{rule}: {where}"), time="0"
        )
        if result == FAIL:
            ET.SubElement(case, "failure", message=_xml(what)).text = _xml(_details(gate, where) or what)
        else:
            ET.SubElement(case, "system-out").text = _xml(f"{result}: {what}")
    failures = sum(finding.action == FAIL for finding in gate.findings)
    suite.attrib |= {"tests": str(len(suite)), "failures": str(failures), "errors": "0", "skipped": "0"}
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _details(gate: Gate, where: str) -> str:
    return "\n".join(test for finding in gate.findings if finding.where == where for test in finding.tests)


def _xml(text: str) -> str:
    """Without the characters that XML can't hold even escaped."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def markdown(gate: Gate) -> str:
    """For a step summary: the verdict, what was found, and folded away what passed."""
    found = [row for row in rows(gate) if row[0] != PASS]
    passed = [row for row in rows(gate) if row[0] == PASS]
    parts = [f"## kvproof gate {escape(gate.verdict)}"]
    if found:
        parts.append(_table(found))
    if passed:
        parts.append(f"<details><summary>{len(passed):,} as before</summary>\n\n{_table(passed)}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _table(lines: Sequence[Sequence[str]]) -> str:
    more = [f"… and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return "\n\n".join([table(COLUMNS, lines[:SHOWN], num_text_columns=len(COLUMNS)), *more])
