"""The benchmark as a user starts it: one command, a profile of their own, rows in the records and in pytest-benchmark's
file, and a mistake told before anything runs."""

import json
import subprocess
import sys

import pytest

from kvproof_reports.records import RunWriter, read_run
from selftest.outside_of_xdist import outside_of_xdist  # noqa: F401  of every test here
from selftest.test_plugin import KERNELS

SMALL = """
seconds = 0.05
[[attention]]
points = ["2q1s40", "q8_q1s30"]
heads = ["4/2"]
head_dims = [16]
block_sizes = [8, 16]
tables = ["dense", "shuffled"]
[[write]]
points = ["q20"]
heads = ["4/2"]
head_dims = [16]
[[copy]]
points = ["4q1"]
heads = ["4/2"]
head_dims = [16]
"""


def bench(folder, *arguments, impl="torch"):
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    options = (f"--impl={impl}", "--isolate=no", "--bench", "--results=run", "--profile=small.toml", *arguments)
    return run_pytest(folder, "kvproof_suites.bench", *options)


def judge(folder, *arguments):
    return run_pytest(folder, "kvproof_suites.kernel.test_needle", "-k", "position", *arguments)


def run_pytest(folder, package, *options):
    (folder / "mine.py").write_text(KERNELS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", package, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def rows(folder):
    return read_run(folder / "run").latest("benchmark")


def test_every_cell_of_a_profile_is_a_row_with_its_figures(tmp_path):
    ended = bench(tmp_path, "--benchmark-json=out.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = {(row["group"], row["point"], row["block_size"], row["table"]): row for row in rows(tmp_path)}
    decode = {("decode", "2q1s40", size, table) for size in (8, 16) for table in ("dense", "shuffled")}
    mixed = {("mixed", "q8_q1s30", size, table) for size in (8, 16) for table in ("dense", "shuffled")}
    moves = {("write", "q20", 16, "shuffled"), ("copy", "4q1", 16, "shuffled")}
    assert set(found) == decode | mixed | moves
    timed = {cell for cell, row in found.items() if row["timed"]}
    assert timed == set(found) - {cell for cell in mixed if cell[3] == "dense"}
    paged, dense = (found["decode", "2q1s40", 16, table] for table in ("shuffled", "dense"))
    assert paged["tax"] == pytest.approx(paged["median_ms"] / dense["median_ms"] - 1, rel=1e-3)
    assert (paged["cache"], paged["mode"], paged["clocks"]) == ("cold", "eager", None)
    assert paged["low_ms"] <= paged["median_ms"] <= paged["high_ms"]
    told = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    medians = {entry["extra_info"]["table"]: 1e3 * entry["stats"]["median"] for entry in told if "16-" in entry["name"]}
    assert medians["shuffled"] > 0
    assert sorted(1e3 * entry["stats"]["median"] for entry in told) == pytest.approx(
        sorted(found[cell]["median_ms"] for cell in timed)
    )


def test_a_row_that_no_law_stands_for_is_stamped_and_one_with_a_run_named_is_verified(tmp_path):
    only = ["-k", "test_decode and b16", "--benchmark-quiet"]
    assert bench(tmp_path, *only).returncode == 0
    stamped = rows(tmp_path)[0]
    assert (stamped["timed"], stamped["verified"]) == (True, False)
    assert "no law of its kernel was verified" in stamped["reason"]
    assert judge(tmp_path, "--impl=torch", "--results=judged").returncode == 0
    ended = bench(tmp_path, *only, "--verified-by=judged", "--results=again")
    assert ended.returncode == 0, ended.stdout
    (row, *_) = read_run(tmp_path / "again").latest("benchmark")
    assert (row["verified"], row["reason"]) == (True, None)


def test_a_kernel_that_breaks_a_law_is_not_timed_and_the_others_are(tmp_path):
    assert judge(tmp_path, "--impl=mine:zeros,mine:kernel", "--results=run").returncode == 1
    bench(tmp_path, "-k", "test_decode and b16 and shuffled", impl="mine:zeros,mine:kernel")
    found = {row["implementation"]: row for row in rows(tmp_path)}
    assert (found["mine:zeros"]["timed"], found["mine:kernel"]["timed"]) == (False, True)
    assert "G18 is broken: what breaks a law is not timed" in found["mine:zeros"]["reason"]
    assert found["mine:kernel"]["verified"]


@pytest.mark.parametrize(
    ("outcome", "timed", "verified", "said"),
    [
        ("broken", False, False, "law A1 is broken: what breaks a law is not timed"),
        ("known_broken", True, False, "law A1 is known to be broken"),
        ("verified", True, True, None),
    ],
)
def test_serving_is_timed_and_stamped_by_the_laws_like_any_other_row(tmp_path, outcome, timed, verified, said):
    told = {"sentence": "x", "test": "t", "seconds": 0.1, "reason": "x" if outcome != "verified" else None}
    RunWriter(tmp_path / "run").write("law", law="A1", implementation="paged", outcome=outcome, **told)
    options = ["--impl=paged", "--bench", "--results=run", "-k", "serving and not 30"]
    assert run_pytest(tmp_path, "kvproof_suites.bench.test_serving_allocator", *options).returncode in (0, 5)
    (row,) = rows(tmp_path)
    assert (row["timed"], row["verified"], row["reason"]) == (timed, verified, said)


def test_a_row_of_a_worker_between_two_of_this_process_leaves_neither_half_done(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL, encoding="utf-8")
    options = ("--bench", "--results=run", "--profile=small.toml", "-k", "decode or write")
    ended = run_pytest(tmp_path, "kvproof_suites.bench", "--impl=mine:kernel,torch", *options)
    assert ended.returncode == 0, ended.stdout
    assert "not torn down" not in ended.stdout


def test_a_wrong_output_fails_its_own_row_alone(tmp_path):
    ended = bench(tmp_path, "-k", "test_decode and b16 and shuffled", impl="mine:zeros,torch")
    assert ended.returncode == 1
    assert "not timed: a new query in the same tensor gets an answer" in ended.stdout
    assert {row["implementation"] for row in rows(tmp_path) if row["timed"]} == {"torch"}


def test_resuming_does_the_rest_only(tmp_path):
    assert bench(tmp_path, "-k", "test_decode and b16 and shuffled").returncode == 0
    first = rows(tmp_path)
    ended = bench(tmp_path, "--resume", "-k", "test_decode and b16")
    assert "1 passed" in ended.stdout, ended.stdout
    assert rows(tmp_path)[0] == first[0], "measured once"
    assert {row["table"] for row in rows(tmp_path)} == {"shuffled", "dense"}
    ended = bench(tmp_path, "--resume", "-k", "test_decode and b16")
    assert "passed" not in ended.stdout, "there is no rest"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points=8q1s1m"], "--points: '8q1s1m' is not <count>q<query>s<context>"),
        (["--verified-by=nowhere"], "nowhere: no such results file"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(tmp_path, arguments, said):
    ended = bench(tmp_path, *arguments)
    assert ended.returncode == 4, ended.stdout + ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()
