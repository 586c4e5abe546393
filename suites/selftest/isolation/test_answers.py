"""A worker's answer is of its case and can be recorded, or its worker is at fault: no case vanishes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.reports import pytest_report_from_serializable

from kvproof_suites.isolation.answers import read_answer
from kvproof_suites.isolation.death import Death
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
    }
    return SimpleNamespace(config=SimpleNamespace(hook=hook), user_properties=OWN, **about)


def answer(**change: Any) -> dict[str, Any]:
    return {"reports": [passed(when) | change for when in PHASES]}


def test_a_report_is_of_the_case_and_the_implementation_that_were_asked_for(item):
    status = [["kvproof_status", "crashed"], ["kvproof_law", "A1"], ["kvproof_error_to_bound", 0.5]]
    for report in read_answer(item, answer(user_properties=status)):
        assert report.nodeid == "t.py::test"
        assert report.user_properties == [*OWN, ("kvproof_error_to_bound", 0.5)]


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
        (answer(duration="long"), "crashed", "'long' is no duration"),
        (answer(duration=-1.0), "crashed", "-1.0 is no duration"),
        (
            answer(user_properties=[["kvproof_error_to_bound", float("nan")]]),
            "crashed",
            "nan is no duration, and no ratio",
        ),
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
    ],
)
def test_what_is_no_answer_is_its_workers_fault(item, given, status, told):
    with pytest.raises(Death) as ended:
        read_answer(item, given)
    assert ended.value.status == status
    assert told in ended.value.told
