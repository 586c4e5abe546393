"""``kvproof compare`` puts the benchmarks of runs side by side."""

import json

import pytest
from click.testing import CliRunner

from kvproof_reports.records import RunWriter
from kvproof_suites import cli


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
            writer.write("benchmark", **benchmark(median_ms, block_size=block_size))
    return tmp_path / "before", tmp_path / "after"


def test_runs_stand_in_columns_with_the_ratio_to_the_first(folders):
    header, *rows = compare(*folders).output.splitlines()
    assert header.split("\t") == ["block_size", "before ms", "after ms", "after ×"]
    assert [row.split("\t") for row in rows] == [["16", "2.00", "1.00", "0.500"], ["32", "1.00", "3.00", "3.00"]]


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
