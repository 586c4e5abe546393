"""``make matrix`` leaves a folder to commit: who was judged and how, who was not and why, and all records."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof_reports.records import RunWriter, read_run
from kvproof_suites import matrix
from kvproof_suites.isolation.probe import Availability
from kvproof_suites.step import FAILED, PASSED, Outcome, Step

FOUND = {
    "right": Availability("kernel", "1.2"),
    "wrong": Availability("kernel", "0.1", ".venvs/wrong"),
    "absent": Availability(reason="needs absent: pip install absent"),
}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs of the laws that take no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(matrix, "availability", FOUND.__getitem__)
    monkeypatch.setattr(matrix, "run", judged)


def judged(step: Step, limit: float) -> Outcome:
    folder = next(word.partition("=")[2] for word in step.command if word.startswith("--kvproof-results="))
    outcome = "broken" if step.name == "wrong" else "verified"
    reason = f"{Path.cwd()}/kernel.py is at fault, says {Path(folder).resolve()}" if outcome == "broken" else None
    writer, about = RunWriter(folder), {"test": "t", "implementation": step.name, "seconds": 0.1, "reason": reason}
    writer.write("law", law="G18", sentence="the right token", outcome=outcome, **about)
    said = "does not conform: 1 broken" if outcome == "broken" else "conforms: 1 verified"
    writer.write("end", exit_code=int(outcome == "broken"), verdict=said, counts={outcome: 1}, seconds=0.1)
    return Outcome(step.name, FAILED if outcome == "broken" else PASSED, "", 0.1)


def published(*options: str) -> tuple[int, Path]:
    ended = CliRunner().invoke(matrix.main, ["--results=judged", "--published=out", *options], catch_exceptions=False)
    (folder,) = Path("out").iterdir()
    return ended.exit_code, folder


def test_everyone_is_in_the_page_with_verdict_or_reason():
    code, folder = published("--impl=right,wrong,absent")
    assert code == 1
    page = (folder / "README.md").read_text()
    assert "| `right` | 1.2 | passed | conforms: 1 verified |" in page
    assert "| `wrong` | 0.1 | failed | does not conform: 1 broken |" in page
    assert "| `absent` |  | not run | needs absent: pip install absent |" in page
    report = (folder / "report.md").read_text()
    assert "needs absent" in report
    assert "| absent | not available |" in report
    assert "did not reach its end" not in report


def test_records_are_packed_readable_and_name_no_folder_of_this_machine():
    _, folder = published("--impl=right,wrong")
    (law,) = read_run(folder / "wrong").latest("law")
    assert law["reason"] == "./kernel.py is at fault, says judged/wrong"
    assert not list(folder.glob("*/results.jsonl"))


def test_who_was_judged_is_not_judged_again(monkeypatch):
    published("--impl=right")
    monkeypatch.setattr(matrix, "run", lambda step, limit: pytest.fail(f"{step.name} was judged again"))
    ended = CliRunner().invoke(matrix.main, ["--impl=right", "--results=judged", "--published=again"])
    assert ended.exit_code == 0
    assert "kept" in ended.output
