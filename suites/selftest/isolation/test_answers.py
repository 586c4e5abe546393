"""A worker's answer is of its case and can be recorded, or its worker is at fault: no case vanishes."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.reports import pytest_report_from_serializable, pytest_report_to_serializable

from kvproof_reports.records import RunWriter
from kvproof_suites.isolation.answers import read_answer, require_loaded
from kvproof_suites.isolation.death import Death
from kvproof_suites.run import outcome_of
from selftest.isolation.thieves import passed

OWN = [("kvproof_law", "G18"), ("kvproof_implementation", "mine")]
PHASES = ("setup", "call", "teardown")


@pytest.fixture
def item() -> Any:
    hook = SimpleNamespace(pytest_report_from_serializable=lambda config, data: pytest_report_from_serializable(data))
    about = {
        "nodeid": "t.py::test",
        "location": ("t.py", 1, "test"),
        "callspec": SimpleNamespace(params={"kernel": "mine"}),
        "keywords": ["mine"],
    }
    return SimpleNamespace(config=SimpleNamespace(hook=hook), user_properties=OWN, **about)


def answer(**change: Any) -> dict[str, Any]:
    return {"reports": [passed(when) | change for when in PHASES]}


def test_a_report_is_of_the_case_and_the_implementation_that_were_asked_for(item):
    status = [["kvproof_status", "crashed"], ["kvproof_law", "A1"], ["kvproof_error_to_bound", 0.5]]
    for report in read_answer(item, answer(user_properties=status)):
        assert report.nodeid == "t.py::test"
        assert report.user_properties == [*OWN, ("kvproof_error_to_bound", 0.5)]


@pytest.mark.parametrize(
    "change", [{"provides": None}, {"provides": ["kernel"]}, {"provides": "sandwich"}, {"version": 5}]
)
def test_what_can_not_be_of_an_implementation_is_no_greeting(change):
    greeting = {"version": "1.0", "provides": "kernel", "expectations": None}
    require_loaded(greeting)
    with pytest.raises(Death, match="of what it has loaded"):
        require_loaded(greeting | change)


ROW = {"implementation": "paged", "group": "decode"}


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [
        ({"reports": []}, "crashed", "has setup, call and teardown"),
        ({"reports": [passed("setup")]}, "crashed", "has setup, call and teardown"),
        ({"reports": [passed("setup"), passed("teardown")]}, "crashed", "has setup, call and teardown"),
        ({"reports": 5}, "crashed", "is no report: TypeError"),
        ({"unknown": "a case"}, "crashed", "is no report: KeyError"),
        (answer(outcome="excellent"), "crashed", "outcome 'excellent' is not one of"),
        (answer(duration="long"), "crashed", "'long' is not a finite number >= 0"),
        (answer(duration=-1.0), "crashed", "-1.0 is not a finite number"),
        (answer(duration=float("inf")), "crashed", "inf is not a finite number"),
        (answer(duration=10**400), "crashed", "ValueError: 10000"),
        (answer(user_properties=[["kvproof_error_to_bound", float("nan")]]), "crashed", "nan is not a number >= 0"),
        (answer(outcome="skipped", longrepr=[]), "crashed", "has setup, call and teardown"),
        (answer(longrepr=["a", 1, "b"]), "crashed", "a test that is passed, and tuple to say why"),
        (answer(wasxfail=5), "crashed", "5 is no text"),
        (answer(user_properties=[["kvproof_peak_bytes", -1]]), "crashed", "-1 is no number of bytes"),
        (answer(user_properties=[["kvproof_peak_device_bytes", "much"]]), "crashed", "'much' is no number of bytes"),
        (answer(user_properties=[["kvproof_records", 7]]), "crashed", "is no report: TypeError"),
        (answer(user_properties=[["kvproof_records", [ROW]]]), "crashed", "a row of 'paged'"),
        (
            answer(user_properties=[["kvproof_records", [ROW | {"implementation": "mine"}]]]),
            "crashed",
            "block_size: missing",
        ),
        (answer() | {"went_on": True}, "crashed", "it forked"),
        (answer() | {"replaced": ["torch.equal"]}, "tampered", "it replaced torch.equal"),
        (answer() | {"replaced": 5}, "tampered", "it replaced 5"),
    ],
)
def test_what_is_no_answer_is_its_workers_fault(item, given, status, told):
    with pytest.raises(Death) as ended:
        read_answer(item, given)
    assert ended.value.status == status
    assert told in ended.value.told


def failed() -> dict[str, Any]:
    """As a worker's pytest sends it: with all that pytest has to tell of an error and of its cause."""
    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise ValueError("story") from cause
    except ValueError:
        told = pytest.ExceptionInfo.from_current().getrepr(style="long", funcargs=True)
    told.addsection("kvproof", "words")
    report = pytest.TestReport("t.py::test", ("t.py", 1, "test"), {}, "failed", told, "call", [("out", "text")])
    return json.loads(json.dumps(pytest_report_to_serializable(report)))


VALUES: tuple[Any, ...] = (None, -1, 10**400, float("inf"), True, "", "x", [], [1], ["a", "b"], [[]], {}, {"a": 1})


def test_no_value_in_any_place_of_an_answer_breaks_what_is_told_and_recorded_of_it(item, tmp_path):
    whole = {"reports": [passed("setup"), failed(), passed("teardown")], "replaced": [], "went_on": False}
    strange = [(*place, name) for place in [("reports", 1)] for name in ("toterminal", "node", "wasxfail", "keywords")]
    places = [*places_of(whole), *strange]
    assert len(places) > 100
    writer, num_taken = RunWriter(tmp_path), 0
    for place, value in itertools.product(places, VALUES):
        given = copy.deepcopy(whole)
        functools.reduce(operator.getitem, place[:-1], given)[place[-1]] = value
        try:
            reports = read_answer(item, given)
        except Death:
            continue
        num_taken += 1
        for report in reports:
            outcome, reason = outcome_of(report) or ("verified", None)
            seconds = round(report.duration, 4)
            writer.write("law", **LAW | {"outcome": outcome, "reason": reason, "seconds": seconds})
    assert num_taken > 100


LAW = {"law": "G18", "sentence": "it holds", "test": "t.py::test", "implementation": "mine"}


def places_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in what JSON holds, but of the whole."""
    if at:
        yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in inside:
        yield from places_of(entry, (*at, name))
