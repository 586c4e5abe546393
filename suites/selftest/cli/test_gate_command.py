"""``kvproof gate`` lets an unchanged run pass, stops a worse one, and writes baselines."""

import json
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from kvproof_reports.mlflow_sink import log_run
from kvproof_reports.records import RunWriter, read_run
from kvproof_reports.samples import sample_fields
from kvproof_suites import cli
from kvproof_suites.environment import describe

STEADY = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 2.03, 1.97, 2.0, 2.0]


def gate(*arguments, **environment):
    return CliRunner().invoke(cli.main, ["gate", *map(str, arguments)], env={"GITHUB_STEP_SUMMARY": "", **environment})


def write_run(folder, factor=1.0, outcome="verified", gpu=None):
    writer = RunWriter(folder)
    writer.write(
        "session",
        implementations=[{"name": "paged"}],
        tier="smoke",
        seed=0,
        device="cpu",
        command=["pytest"],
        environment={**describe("cpu"), "gpu": gpu},
    )
    reason = None if outcome == "verified" else "two owners of block 7"
    law = {"law": "A1", "sentence": "s", "test": "kvproof_suites/allocator/test_machine.py::test[paged]"}
    writer.write("law", **law, implementation="paged", outcome=outcome, reason=reason, seconds=0.1)
    workload = {"group": "allocator", "operation": "append", "block_size": 16, "device": "cpu"}
    timed = sample_fields([factor * sample for sample in STEADY])
    writer.write("benchmark", **workload, implementation="paged", timed=True, verified=True, **timed)
    return folder


@pytest.fixture
def baseline(tmp_path):
    path = tmp_path / "baseline.jsonl"
    assert gate("--baseline", path, "--update", write_run(tmp_path / "before")).exit_code == cli.CONFORMS
    return path


def test_an_unchanged_run_passes(baseline, tmp_path):
    told = gate("--baseline", baseline, write_run(tmp_path / "after"))
    assert told.exit_code == cli.CONFORMS, told.output
    header, *rows, verdict = told.output.splitlines()
    assert header.split("\t") == ["result", "rule", "implementation", "where", "what"]
    assert [row.split("\t")[:3] for row in rows] == [["pass", "same", "paged"], ["pass", "as before", "paged"]]
    assert verdict == "gate passes: 1 test and 1 benchmark compared"


@pytest.mark.parametrize(
    ("change", "rule"), [({"factor": 1.1}, "slower"), ({"outcome": "broken"}, "law_broken")], ids=["slower", "broken"]
)
def test_a_worse_run_fails_and_every_file_says_why(baseline, tmp_path, change, rule):
    run, summary = write_run(tmp_path / "after", **change), tmp_path / "summary.md"
    told = gate("--baseline", baseline, run, GITHUB_STEP_SUMMARY=str(summary))
    assert told.exit_code == cli.LAW_BROKEN
    (finding,) = json.loads((run / "gate.json").read_text())["findings"]
    assert (finding["rule"], finding["action"]) == (rule, "fail")
    (suite,) = ET.parse(run / "gate.junit.xml").getroot()
    assert suite.get("failures") == "1"
    assert "| fail |" in summary.read_text()


def test_a_step_summary_is_added_to_what_is_there(baseline, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("# of another step\n")
    gate("--baseline", baseline, write_run(tmp_path / "after"), GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().startswith("# of another step\n## kvproof gate passes")


def test_a_summary_that_can_not_be_written_is_named_with_the_verdict(baseline, tmp_path):
    told = gate("--baseline", baseline, write_run(tmp_path / "after"), GITHUB_STEP_SUMMARY=str(tmp_path))
    assert told.exit_code == cli.USAGE_ERROR
    assert f"{tmp_path}: Is a directory; the gate passes" in told.stderr


def test_json_is_one_document(baseline, tmp_path):
    told = gate("--baseline", baseline, "--json", write_run(tmp_path / "after", factor=1.2))
    assert told.exit_code == cli.LAW_BROKEN
    assert json.loads(told.stdout)["benchmarks"][0]["answer"] == "slower"


def test_rules_from_a_file_decide(baseline, tmp_path):
    rules = tmp_path / "gate.toml"
    rules.write_text('[implementation.paged.slower]\naction = "warn"\n')
    told = gate("--baseline", baseline, "--rules", rules, write_run(tmp_path / "after", factor=1.2))
    assert told.exit_code == cli.CONFORMS
    assert told.output.splitlines()[1].startswith("warn\tslower\tpaged")


def test_a_wrong_rule_is_told_in_a_line_and_nothing_is_written(baseline, tmp_path):
    rules, run = tmp_path / "gate.toml", write_run(tmp_path / "after")
    rules.write_text("[slower]\ntreshold = 0.1\n")
    told = gate("--baseline", baseline, "--rules", rules, run)
    assert told.exit_code == cli.USAGE_ERROR
    assert told.stderr == f"kvproof: {rules}: [slower]: unknown key 'treshold'; did you mean 'threshold'?\n"
    assert [path.name for path in run.iterdir()] == ["results.jsonl"]


def test_a_faulty_baseline_is_told_by_file_line_and_field(baseline, tmp_path):
    baseline.write_text(baseline.read_text().replace('"block_size": 16', '"block_size": "16"'))
    told = gate("--baseline", baseline, write_run(tmp_path / "after"))
    assert told.exit_code == cli.USAGE_ERROR
    assert f"{baseline}:3: block_size: '16' is not an integer" in told.stderr


def test_a_baseline_of_another_machine_is_refused_unless_asked_for(baseline, tmp_path):
    run = write_run(tmp_path / "after", gpu="NVIDIA H200")
    told = gate("--baseline", baseline, run)
    assert told.exit_code == cli.USAGE_ERROR
    assert "gpu: none in the baseline, NVIDIA H200 in the run" in told.stderr
    assert not (run / "gate.json").exists()
    assert gate("--baseline", baseline, "--allow-other-machine", run).exit_code == cli.CONFORMS


def test_a_baseline_that_is_not_there_says_how_to_write_it(tmp_path):
    told = gate("--baseline", tmp_path / "none.jsonl", write_run(tmp_path / "after"))
    assert told.exit_code == cli.USAGE_ERROR
    assert "no such baseline; --update writes one from the RUNs" in told.stderr


def test_update_shows_the_difference_and_replaces_the_baseline_even_of_another_machine(baseline, tmp_path):
    slower = write_run(tmp_path / "after", factor=1.2, gpu="NVIDIA H200")
    told = gate("--baseline", baseline, "--update", slower)
    assert told.exit_code == cli.CONFORMS
    assert told.stdout.splitlines()[1].startswith("fail\tslower\tpaged")
    assert f"baseline: {baseline}: 1 tests, 1 timed benchmarks" in told.stderr
    assert gate("--baseline", baseline, slower).exit_code == cli.CONFORMS


def test_update_says_that_what_is_broken_will_not_fail(baseline, tmp_path):
    told = gate("--baseline", baseline, "--update", write_run(tmp_path / "after", outcome="broken"))
    assert "1 of the tests are broken in it, and will not fail the gate" in told.stderr


@pytest.mark.parametrize("name", ["a" * 32, "."])
def test_update_writes_files_only(tmp_path, name):
    told = gate("--baseline", name, "--update", write_run(tmp_path / "after"))
    assert told.exit_code == cli.USAGE_ERROR
    assert "--update writes a file" in told.stderr


def test_a_baseline_may_be_a_run_in_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_id = log_run(write_run(tmp_path / "before"), tracking_uri=uri).parent_run_id
    told = gate("--baseline", run_id, f"--mlflow={uri}", write_run(tmp_path / "after", factor=1.1))
    assert told.exit_code == cli.LAW_BROKEN, told.output


def test_a_baseline_is_of_all_runs_that_it_was_made_from(tmp_path):
    path = tmp_path / "baseline.jsonl"
    gate("--baseline", path, "--update", write_run(tmp_path / "monday"), write_run(tmp_path / "tuesday", factor=1.01))
    (benchmark,) = read_run(path).latest("benchmark")
    assert benchmark["samples_per_process"] == [10, 10]


def test_a_torn_line_is_told_and_the_rest_is_judged(baseline, tmp_path):
    run = write_run(tmp_path / "after")
    with (run / "results.jsonl").open("a") as file:
        file.write('{"schema_version": 2, "ki')
    told = gate("--baseline", baseline, run)
    assert told.exit_code == cli.CONFORMS
    assert "torn line left out" in told.stderr


def test_a_rerun_on_another_machine_is_refused(baseline, tmp_path):
    run = write_run(tmp_path / "after", factor=1.1, gpu="NVIDIA H200")
    told = gate("--baseline", baseline, "--allow-other-machine", "--rerun=1", run)
    assert told.exit_code == cli.USAGE_ERROR
    assert "its record does not name the test that timed it" in told.stderr
