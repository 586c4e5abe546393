"""What the gate can't tell is timed again in another process: those benchmarks alone, as they were timed before."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kvproof_reports.records import RunWriter, read_run
from kvproof_reports.samples import sample_fields
from kvproof_reports.schema import COMMON
from kvproof_suites import cli
from kvproof_suites.cli.gate_rerun import recorded_options
from selftest.outside_of_xdist import outside_of_xdist  # noqa: F401  of every test here

WIDE = [0.5, 0.6, 0.7, 2.9, 0.6, 2.2, 0.5, 2.4, 0.7, 2.5]


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A real run of one allocator, some of its calls."""
    folder = tmp_path_factory.mktemp("gate") / "run"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs"]
    command += ["kvproof_suites.bench.test_allocator", "--impl=paged-python", "--bench", f"--results={folder}"]
    command += ["--benchmark-quiet", "-k", "free or fork", "--seed=3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def unclear_baseline(run, path):
    """The run's own records, the first benchmark with timings that lie far apart, the others slower than now."""
    unclear, writer = None, RunWriter(path.parent / "made")
    for record in run.records:
        own = {name: value for name, value in record.items() if name not in COMMON}
        if record["kind"] == "benchmark" and record["timed"]:
            first = unclear is None
            unclear = record if first else unclear
            spread = WIDE if first else [3.0, 3.01, 2.99] * 4
            own |= sample_fields([record["median_ms"] * factor for factor in spread])
        writer.write(record["kind"], **own)
    writer.path.rename(path)
    return unclear


def test_only_what_is_unclear_is_timed_again_and_its_samples_count(timed, tmp_path):
    run = read_run(timed)
    unclear = unclear_baseline(run, tmp_path / "baseline.jsonl")

    told = CliRunner().invoke(cli.main, ["gate", f"--baseline={tmp_path / 'baseline.jsonl'}", "--rerun=1", str(timed)])

    assert told.exit_code == cli.CONFORMS, told.output
    again = read_run(timed / "rerun-1")
    (record,) = again.latest("benchmark")
    assert record["record_id"] != unclear["record_id"]  # another run
    assert (record["test"], record["timed"]) == (unclear["test"], True)
    assert again.latest("session")[0]["seed"] == 3
    first, *others = json.loads((timed / "gate.json").read_text())["benchmarks"]
    assert first["after_samples"] == unclear["num_samples"] + record["num_samples"]
    assert {one["answer"] for one in others} == {"faster"}


def test_the_options_of_the_first_run_are_taken_over_and_what_is_pytests_own_is_not():
    command = ["pytest", "--pyargs", "kvproof_suites.bench", "--impl=cpu,torch", "--kvproof-device", "cpu", "--bench"]
    command += ["-p", "no:cacheprovider", "-k", "decode", "--seed=3", "--results=x", "--expect=a.toml", "-n", "2"]
    assert recorded_options(command) == {"impl": "cpu,torch", "device": "cpu", "seed": 3}
