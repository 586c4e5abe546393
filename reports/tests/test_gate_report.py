"""A gate's verdict as a table, JSON, JUnit and Markdown: the same findings in each, whatever they hold."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from kvproof_reports import gate_report
from kvproof_reports.gate import judge
from kvproof_reports.gate_rules import Rules
from kvproof_reports.records import read_run
from kvproof_reports.samples import sample_fields

STEADY = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 2.03, 1.97, 2.0, 2.0]
NOISY = [2.0, 2.6, 1.7, 2.9, 1.6, 2.2, 1.8, 2.4, 2.0, 2.5]
HOSTILE = "<b>|`x`](y)\x00\ud800 & @all"


@pytest.fixture
def gate(build):
    """A law newly broken, a benchmark slower, one unclear, one the same, a law as before."""
    before, after = build("before"), build("after")
    for run in (before, after):
        run.session()
        run.law("G01", "torch")
    before.law("G18", "torch")
    after.law("G18", "torch", "broken", reason=f"position 17 {HOSTILE}".replace("\ud800", ""))
    for samples, block_size in ((STEADY, 16), (NOISY, 32), (STEADY, 64)):
        before.decode("torch", block_size=block_size, **sample_fields(samples))
        factor = 1.1 if block_size == 16 else 1.0
        after.decode("torch", block_size=block_size, **sample_fields([factor * sample for sample in samples[::-1]]))
    return judge(read_run(before.writer.folder), [read_run(after.writer.folder)], Rules())


def test_the_table_has_failures_first_and_what_passed_last(gate):
    assert [row[:2] for row in gate_report.rows(gate)] == [
        ("fail", "law broken"),
        ("fail", "slower"),
        ("warn", "ambiguous"),
        ("pass", "same"),
        ("pass", "as before"),
    ]


def test_json_holds_findings_and_every_benchmark_with_its_interval(gate):
    document = json.loads(gate_report.json_text(gate))
    assert document["failed"] is True
    assert [finding["rule"] for finding in document["findings"]] == ["law_broken", "slower", "ambiguous"]
    assert document["findings"][0]["tests"] == ["suites/kernel/test_laws.py::test_law[t1]"]
    assert [one["answer"] for one in document["benchmarks"]] == ["slower", "can't tell", "same"]
    assert all(one["low"] <= one["ratio"] <= one["high"] for one in document["benchmarks"])
    assert document["unchanged_tests"] == [{"implementation": "torch", "law": "G01", "tests": 1}]


def test_junit_fails_for_what_fails_and_tells_what_warns(gate):
    (suite,) = ET.fromstring(gate_report.junit(gate))
    assert (suite.get("tests"), suite.get("failures"), len(suite)) == ("5", "2", 5)
    failures = [case.find("failure") for case in suite if case.find("failure") is not None]
    assert "position 17 <b>|`x`](y)\N{REPLACEMENT CHARACTER}" in failures[0].get("message")
    assert failures[0].text == "suites/kernel/test_laws.py::test_law[t1]"
    (warning,) = (case.findtext("system-out") for case in suite if case.get("name").startswith("ambiguous"))
    assert warning.startswith("warn: 2.")


def test_markdown_is_a_table_whatever_stands_in_it(gate):
    text = gate_report.markdown(gate)
    assert text.startswith("## kvproof gate FAILS: 2 tests and 3 benchmarks compared, 2 failures, 1 warning")
    rows = [line for line in text.splitlines() if line.startswith("| fail")]
    assert len(rows) == 2
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert "<b>" not in text
    assert "<details><summary>2 as before</summary>" in text


def test_a_long_step_summary_is_cut_and_says_so(gate, monkeypatch):
    monkeypatch.setattr(gate_report, "SHOWN", 1)
    assert "… and 2 more" in gate_report.markdown(gate)
