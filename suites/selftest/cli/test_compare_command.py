"""``kvproof compare`` puts the benchmarks of runs side by side."""

import json

import pytest
from click.testing import CliRunner

from kvproof_reports.mlflow_sink import log_run
from kvproof_reports.records import RunWriter
from kvproof_reports.samples import sample_fields
from kvproof_suites import cli

SHARES = (1.0, 0.99, 1.01, 1.0, 0.99, 1.01, 1.0, 0.99, 1.01)


def compare(*arguments):
    return CliRunner().invoke(cli.main, ["compare", *map(str, arguments)])


def benchmark(median_ms, **fields):
    timed = {"timed": True, "median_ms": median_ms, "q1_ms": median_ms, "q3_ms": median_ms, "num_samples": 5}
    workload = {
        "group": "allocator",
        "operation": "append",
        "implementation": "paged",
        "block_size": 16,
        "device": "cpu",
    }
    return {**workload, **timed, "verified": True, **fields}


@pytest.fixture
def folders(tmp_path):
    for name, medians in {"before": {16: 2.0, 32: 1.0}, "after": {16: 1.0, 32: 3.0}}.items():
        writer = RunWriter(tmp_path / name)
        for block_size, median_ms in medians.items():
            samples = [median_ms * share for share in SHARES] if block_size == 16 else None
            writer.write("benchmark", **benchmark(median_ms, block_size=block_size, samples_ms=samples))
    return tmp_path / "before", tmp_path / "after"


def test_runs_stand_in_columns_with_the_ratio_to_the_first(folders):
    header, *rows = compare(*folders).output.splitlines()
    assert header.split("\t") == ["block_size", "before ms", "after ms", "after ×", "after 95 %", "after is"]
    assert [row.split("\t") for row in rows] == [
        ["16", "2.00", "1.00", "0.500", "0.495 to 0.505", "faster"],
        ["32", "1.00", "3.00", "3.00", "–", "can't tell"],
    ]


def test_the_ratio_is_the_one_that_its_interval_and_its_answer_are_of(tmp_path):
    core = [2.0 * share for share in SHARES]
    for name, waited_ms in {"busy": 2.0, "calm": 0.0}.items():
        fields = sample_fields([sample + waited_ms for sample in core], core_ms=core)
        RunWriter(tmp_path / name).write("benchmark", **benchmark(**fields, threads=1))
    _, row = compare(tmp_path / "busy", tmp_path / "calm").output.splitlines()
    assert row.split("\t")[:3] == ["4.00", "2.00", "1.00"]
    low, high = map(float, row.split("\t")[3].split(" to "))
    assert low <= 1.0 <= high


def test_implementations_stand_in_columns_on_request(tmp_path):
    writer = RunWriter(tmp_path / "monday")
    writer.write("benchmark", **benchmark(1.0))
    writer.write("benchmark", **benchmark(4.0, implementation="mine"))
    shown = json.loads(compare("--implementations", "--json", tmp_path / "monday").output)
    assert shown["columns"] == ["paged", "mine"]
    assert shown["rows"][0]["ratio"] == {"paged": 1.0, "mine": 4.0}


def test_a_folder_without_results_is_named(tmp_path):
    told = compare(tmp_path)
    assert told.exit_code == cli.USAGE_ERROR
    assert "no such results file" in told.stderr


def test_a_faulty_record_is_told_by_file_line_and_field(folders):
    path = folders[0] / "results.jsonl"
    path.write_text(path.read_text().replace('"block_size": 32', '"block_size": -1'))
    told = compare(*folders)
    assert told.exit_code == cli.USAGE_ERROR
    assert f"{path}:2: block_size" in told.stderr


def test_runs_without_a_timed_benchmark_say_so(tmp_path):
    fields = benchmark(1.0, timed=False, reason="the interpreter is never timed")
    fields = {name: value for name, value in fields.items() if not name.endswith("_ms") and name != "num_samples"}
    RunWriter(tmp_path / "untimed").write("benchmark", **fields)
    told = compare(tmp_path / "untimed")
    assert told.exit_code == cli.USAGE_ERROR
    assert "no timed benchmark" in told.stderr


def test_json_holds_the_answer_with_its_interval_and_why_there_is_none(folders):
    shown = json.loads(compare("--json", *folders).output)
    assert (shown["threshold"], shown["confidence"]) == (0.03, 0.95)
    clear, unclear = (row["answers"]["after"] for row in shown["rows"])
    assert (clear["answer"], clear["ratio"], clear["why"]) == ("faster", 0.5, None)
    assert clear["low"] < 0.5 < clear["high"]
    assert (unclear["answer"], unclear["low"]) == ("can't tell", None)
    assert unclear["why"].startswith("no samples before")


def test_the_threshold_can_be_chosen(folders):
    shown = json.loads(compare("--json", "--threshold=1", *folders).output)
    assert shown["rows"][0]["answers"]["after"]["answer"] == "can't tell"  # half, and the interval reaches below it


def test_an_mlflow_run_is_named_by_its_id(folders, tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_id = log_run(folders[0], tracking_uri=uri).parent_run_id
    shown = compare(run_id, folders[1], f"--mlflow={uri}")
    assert [row.split("\t")[-1] for row in shown.output.splitlines()] == ["after is", "faster", "can't tell"]


def test_an_mlflow_run_that_is_not_there_is_told_in_two_lines(tmp_path):
    told = compare("0" * 32, f"--mlflow=sqlite:///{tmp_path}/none.db")
    assert told.exit_code == cli.USAGE_ERROR
    assert "no such database" in told.stderr
