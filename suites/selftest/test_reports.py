"""Every public report of the catalogue is reproduced by a wrong implementation, or says why it can't be."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from selftest.wrong.meant_laws import CATALOGUES, MEANT

REPORTS = tomllib.loads((Path(__file__).parent / "wrong" / "reports.toml").read_text(encoding="utf-8"))["report"]
WRONG = {name.removeprefix("selftest.wrong.").replace(":", ".") for name in MEANT}
"""module.ClassName of every wrong implementation that the kill run judges."""


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["slug"])
def test_a_report_has_a_wrong_implementation_or_a_reason(report: dict[str, str]) -> None:
    said = report.keys() - {"slug", "ref"}
    assert said in ({"wrong"}, {"why_not"}), f"{report['slug']} needs one of wrong and why_not, and has {sorted(said)}"
    assert all(report.values()), f"{report['slug']} has an empty field"
    if "wrong" in report:
        assert report["wrong"] in WRONG, f"{report['slug']}: no wrong implementation is called {report['wrong']}"


def test_no_report_is_told_twice() -> None:
    told = Counter(report["slug"] for report in REPORTS)
    assert [slug for slug, times in told.items() if times > 1] == []


def test_what_a_wrong_implementation_cites_is_a_report() -> None:
    """A reference in a table of wrong implementations is one of the catalogue's; what is ours says so."""
    known = {report["ref"] for report in REPORTS}
    cited = {wrong.origin for catalogue in CATALOGUES.values() for wrong in catalogue.values() if "#" in wrong.origin}
    assert cited - known == set()
