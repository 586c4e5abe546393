"""A kernel that crashes, hangs, eats all memory or loses the device fails the case in which it does, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvproof_reports.records import read_run
from selftest.isolation.hostile import OFTEN

SUITE = "kvproof_suites.kernel.test_needle"
CASES = "test_nothing_past_the_causal_limit_is_found"
HOSTILE = "selftest.isolation.hostile"
THIEVES = "selftest.isolation.thieves"
DEATHS = {
    "segfaults": ("crashed", "killed by signal 11 (SIGSEGV)"),
    "leaves": ("crashed", "left by itself with exit code 0"),
    "hangs": ("timed_out", "no answer for 20 s"),
    "leaves_a_child": ("crashed", "killed by signal 6 (SIGABRT)"),
    "loses_the_device": ("device_error", "an illegal memory access"),
}
THEFTS = {
    "forks": ("crashed", "it forked, and the child went on in place of the worker"),
    "closes": ("crashed", "exit code"),
    "eats_in_a_child": ("out_of_memory", "GB, and 3.0 are allowed"),
    "prints": ("out_of_disk", "MB, and 100 are allowed"),
    "answers_first": ("crashed", "an answer to no question"),
    "replaces_equal": ("tampered", "it replaced torch.equal, by which it is judged"),
    "replaces_the_report": ("crashed", "left by itself with exit code 3"),
}
KNOWN = """
[[expect]]
law = "G18"
test = "*-17q17k_32q32k-*"
reason = "reads address 0"
raises = "crashed"

[[expect]]
law = "G18"
test = "*-7q33k_16q40k_2q17k-*"
reason = "did so once"
raises = "crashed"
"""


def judge(folder: Path, impl: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", SUITE, "-k", CASES]
    command += [f"--kvproof-impl={impl}", "--kvproof-results=judged", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


def laws(folder: Path, name: str) -> list[dict[str, Any]]:
    return [
        law for law in read_run(folder / "judged").latest("law") if law["implementation"].rpartition(":")[2] == name
    ]


def require_true_ends(folder: Path, module: str, ends: dict[str, tuple[str, str]]) -> str:
    """One run for all of them, since each worker takes seconds to start; what it printed."""
    listed = ",".join(f"{module}:{name}" for name in ends)
    ended = judge(folder, listed, "--kvproof-timeout=20", "--kvproof-max-memory=3")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    for name, (status, told) in ends.items():
        records = laws(folder, name)
        dead = [record for record in records if record["status"]]
        assert [(record["outcome"], record["status"]) for record in dead] == [("broken", status)]
        assert told in dead[0]["reason"]
        assert [record["outcome"] for record in records if not record["status"]] == ["verified"] * 2
    return ended.stdout


def test_each_death_fails_its_case_with_a_true_status_and_the_run_goes_on(tmp_path):
    assert_story(require_true_ends(tmp_path, HOSTILE, DEATHS))
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert [command for command in commands if f"time.sleep({OFTEN})".encode() in command] == [], "a child is left"


def test_each_theft_fails_its_case_with_a_true_status_and_the_run_goes_on(tmp_path):
    out = require_true_ends(tmp_path, THIEVES, THEFTS)
    assert f"verdict: does not conform: {2 * len(THEFTS)} verified, {len(THEFTS)} broken" in out
    assert len((tmp_path / "judged" / "results.jsonl").read_bytes()) < 100_000, "what was printed is not kept"


def assert_story(out: str) -> None:
    assert "Fatal Python error: Segmentation fault" in out
    assert "in <lambda>" in out
    assert "/pluggy/" not in out
    assert "case:    Case(seqs=((17, 17), (32, 32)))" in out
    assert "repeat:  pytest --pyargs 'kvproof_suites.kernel.test_needle::test_nothing_past_the_causal_limit" in out


def test_a_crash_that_is_known_is_known_broken_and_one_that_is_gone_is_told(tmp_path):
    (tmp_path / "known.toml").write_text(KNOWN)
    told = judge(tmp_path, f"{HOSTILE}:segfaults", "--kvproof-expect=known.toml")
    assert told.returncode == 1, told.stdout
    assert [law["outcome"] for law in laws(tmp_path, "segfaults")].count("known_broken") == 1
    assert "known.toml: [[expect]] 2 lists this as broken, and it passes: remove the entry" in told.stdout


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("no_such", "failed to import"),
        ("dies_at_import", "its worker died at the start: crashed: it left by itself with exit code 7"),
    ],
)
def test_what_can_not_be_loaded_ends_the_run_before_any_test(tmp_path, module, told):
    ended = judge(tmp_path, f"selftest.isolation.{module}:kernel")
    assert ended.returncode == 4
    assert told in ended.stderr
    assert not (tmp_path / "judged").exists()


def test_a_worker_that_dies_after_its_last_case_makes_the_run_fail(tmp_path):
    ended = judge(tmp_path, f"{HOSTILE}:dies_at_exit")
    assert "dies_at_exit: its worker ended with exit code 5, after its last case" in ended.stdout
    assert "verdict: does not conform: 3 verified, 1 error" in ended.stdout
    assert ended.returncode == 1


ZEROS = """
import torch
from kvproof_impls import from_function
kernel = from_function(lambda query, *tensors, scale: torch.zeros_like(query))
"""


def test_a_worker_that_saw_laws_broken_and_nothing_else_has_ended_well(tmp_path):
    (tmp_path / "zeros.py").write_text(ZEROS)
    ended = judge(tmp_path, "zeros:kernel")
    assert "verdict: does not conform: 3 broken\n" in ended.stdout
    assert "after its last case" not in ended.stdout
    assert ended.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["by a person", "by a machine"])
def test_an_interrupt_ends_the_workers_at_once_and_leaves_none(tmp_path, number):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", SUITE, "-k", CASES]
    command += [f"--kvproof-impl={HOSTILE}:hangs", "--kvproof-results=judged"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for(tmp_path / "hanging")
        run.send_signal(number)
        assert run.wait(30) == 2
    finally:
        run.kill()
        run.wait()
    assert [path for path in Path("/proc").glob("[0-9]*/cwd") if folder_of(path) == tmp_path] == []
    assert list(temporary.glob("kvproof-*")) == []
    assert read_run(tmp_path / "judged").latest("end")[0]["exit_code"] == 2


def folder_of(link: Path) -> Path | None:
    try:
        return link.readlink()
    except OSError:  # it has ended meanwhile
        return None


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.1)


def test_cases_that_do_not_follow_one_another_in_the_worker_leave_nothing_of_one_to_the_next(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--kvproof-results=judged", "--pyargs"]
    command += [SUITE, "kvproof_suites.kernel.test_census", "-k", "1q17k-b16-h2x1-d64"]
    command += ["--kvproof-impl=selftest.wrong.right_kernel:RightKernel"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout
    assert {law["law"] for law in laws(tmp_path, "RightKernel")} == {"G18", "G19", "G13"}
