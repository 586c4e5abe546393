"""A baseline: refused where it says nothing about the run, and written whole or not at all."""

import json

import pytest

from kvproof_reports.baseline import BaselineError, write_baseline
from kvproof_reports.gate import judge
from kvproof_reports.gate_rules import Rules
from kvproof_reports.records import RecordError, read_run
from kvproof_reports.samples import sample_fields

ENVIRONMENT = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "platform": "Linux x86_64",
    "cpu": "made-up CPU",
    "num_cpus": 2,
    "git_commit": "0123abc",
    "kvproof": "0.1.0",
}
SAMPLES = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0]


def run(build, name, environment=None, **changes):
    made = build(name)
    made.session(environment={**ENVIRONMENT, **(environment or {})})
    made.law("G01", "torch")
    made.decode("torch", **{**sample_fields(SAMPLES), **changes})
    return read_run(made.writer.folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpu": "NVIDIA H200"}, "gpu: none in the baseline, NVIDIA H200 in the run"),
        ({"cpu": "another"}, "cpu: made-up CPU in the baseline, another in the run"),
        ({"num_cpus": 4}, "num_cpus: 2 in the baseline, 4 in the run"),
        ({"torch": "2.14.0"}, "torch: 2.13.0 in the baseline, 2.14.0 in the run"),
        ({"kvproof": "0.2.0"}, "kvproof: 0.1.0 in the baseline, 0.2.0 in the run"),
        ({"python": "3.12.1"}, "python: 3.11 in the baseline, 3.12 in the run"),
    ],
)
def test_a_baseline_of_another_machine_or_version_is_refused_unless_asked_for(build, change, told):
    before, after = run(build, "before"), run(build, "after", change)

    with pytest.raises(BaselineError, match="--update, or compare all the same with --allow-other-machine") as refused:
        judge(before, [after], Rules())

    assert told in str(refused.value)
    assert not judge(before, [after], Rules(), any_machine=True).failed


@pytest.mark.parametrize("change", [{"python": "3.11.9"}, {"git_commit": "4567def"}, {"driver": "580.1"}])
def test_what_makes_no_difference_or_was_not_known_is_no_other_machine(build, change):
    assert not judge(run(build, "before"), [run(build, "after", change)], Rules()).failed


def test_two_runs_that_differ_among_themselves_are_not_one(build):
    runs = [run(build, "one"), run(build, "other", {"gpu": "NVIDIA H200"})]
    with pytest.raises(BaselineError, match="NVIDIA H200 and none in the run"):
        judge(run(build, "before"), runs, Rules())


def test_a_baseline_of_an_older_schema_is_refused(build):
    before, after = run(build, "before"), run(build, "after")
    lines = [json.loads(line) for line in before.path.read_text().splitlines()]
    before.path.write_text("".join(json.dumps({**line, "schema_version": 1}) + "\n" for line in lines))

    with pytest.raises(BaselineError, match="schema: version 1 in the baseline, 2 in the run"):
        judge(read_run(before.path), [after], Rules())


def test_a_baseline_without_a_session_is_of_no_known_machine(build):
    before = build("before")
    before.law("G01", "torch")
    with pytest.raises(BaselineError, match="no session record"):
        judge(read_run(before.writer.folder), [run(build, "after")], Rules())


def test_a_baseline_with_nothing_in_common_is_refused_and_says_what_each_is_about(build):
    other = build("other")
    other.session()
    other.law("G01", "triton")
    other.decode("triton")
    with pytest.raises(BaselineError, match=r"about triton \(1 tests, 1 timed .*about torch \(1 tests, 1 timed"):
        judge(read_run(other.writer.folder), [run(build, "after")], Rules(), any_machine=True)


def test_what_was_written_is_a_results_file_that_its_own_runs_pass(build, tmp_path):
    runs = [run(build, "monday"), run(build, "tuesday")]

    cells = write_baseline(tmp_path / "new" / "baseline.jsonl", runs)

    written = read_run(tmp_path / "new" / "baseline.jsonl")
    assert written.run_id == "baseline"
    assert (len(cells.tests), len(cells.benchmarks)) == (1, 1)
    (benchmark,) = written.latest("benchmark")
    assert (benchmark["samples_ms"], benchmark["samples_per_process"]) == (SAMPLES * 2, [6, 6])
    assert not judge(written, runs, Rules()).failed
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["baseline.jsonl"]


def test_a_baseline_that_can_not_be_written_whole_leaves_the_old_one(build, tmp_path, monkeypatch):
    path = tmp_path / "baselines" / "baseline.jsonl"
    path.parent.mkdir()
    path.write_text("as it was")
    made = run(build, "made")

    def fails(*_, **__):
        raise RecordError("of the second record")

    monkeypatch.setattr("kvproof_reports.baseline.RunWriter.write", fails)
    with pytest.raises(RecordError):
        write_baseline(path, [made])
    assert path.read_text() == "as it was"
    assert [one.name for one in path.parent.iterdir()] == ["baseline.jsonl"]


def test_nothing_makes_no_baseline(build, tmp_path):
    empty = build("empty")
    empty.session()
    with pytest.raises(BaselineError, match=r"no test and no benchmark in .*empty"):
        write_baseline(tmp_path / "baseline.jsonl", [read_run(empty.writer.folder)])
    assert not (tmp_path / "baseline.jsonl").exists()
