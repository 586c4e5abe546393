"""The plugin as a user meets it: ten lines of kernel, exit codes, bad names, and no trace of it in other test runs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof_reports.records import read_run
from selftest import plain_attention

RIGHT = inspect.getsource(plain_attention)

KERNELS = (
    RIGHT
    + """
from kvproof_impls import from_function
kernel = from_function(attend)
zeros = from_function(lambda query, *tensors, scale: torch.zeros_like(query))
picky = from_function(attend, unsupported=lambda spec: "runs on Sundays only")
numbered = from_function(attend, features={"lse", 5})
misspelt = from_function(attend, features={"lse", "windw"})
wordless = from_function(attend, unsupported=lambda spec: "")
def skipping(query, *tensors, scale):
    import pytest
    pytest.skip("refused by declaration: not in the mood")
sly = from_function(skipping)
def broken_factory():
    raise RuntimeError("the driver is out to lunch")
def leaving_factory():
    raise SystemExit(0)
"""
)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def judge(folder: Path, impl: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(KERNELS, encoding="utf-8")
    return run(
        folder, "--pyargs", "kvproof_suites", f"--impl={impl}", "--isolate=no", "--results=judged", "-q", *arguments
    )


def test_a_kernel_of_ten_lines_conforms(tmp_path: Path) -> None:
    ended = judge(tmp_path, "mine:kernel")
    assert ended.returncode == 0, ended.stdout
    assert "verdict: conforms" in ended.stdout
    outcomes = {law["outcome"] for law in read_run(tmp_path / "judged").latest("law")}
    assert outcomes == {"verified", "refused", "not_run"}


def test_a_kernel_of_zeros_breaks_the_needle_law_and_exits_with_1(tmp_path: Path) -> None:
    ended = judge(tmp_path, "mine:zeros", "-x")
    assert ended.returncode == 1
    assert "G18 needle is broken: When one key outweighs all others" in ended.stdout
    assert "repeat:  pytest --pyargs 'kvproof_suites.kernel.test_needle::" in ended.stdout


def test_a_run_in_which_nothing_was_verified_exits_with_5_and_says_why(tmp_path: Path) -> None:
    ended = judge(tmp_path, "mine:picky")
    assert ended.returncode == 5, ended.stdout
    assert "nothing was verified" in ended.stdout
    assert "refused by declaration: runs on Sundays only" in ended.stdout


def test_the_repeat_command_repeats_one_case(tmp_path: Path) -> None:
    said = judge(tmp_path, "mine:zeros", "-x").stdout
    node = said.partition("repeat:  pytest --pyargs '")[2].partition("'")[0]
    ended = run(tmp_path, "--pyargs", node, "--impl=mine:zeros", "--isolate=no", "-q", "--results=again")
    assert ended.returncode == 1
    assert len(read_run(tmp_path / "again").latest("law")) == 1


@pytest.mark.parametrize(
    ("impl", "said"),
    [
        ("tritn", "Did you mean 'triton'?"),
        ("mine:broken_factory", "RuntimeError: the driver is out to lunch"),
        ("mine:absent", "AttributeError"),
        ("mine:leaving_factory", "SystemExit: 0"),
        ("mine:numbered", "give a set of names, empty for none"),
        ("mine:misspelt", "unknown feature 'windw'; did you mean 'window'?"),
        ("flash-attn", "flash-attn is unavailable"),
    ],
)
def test_a_name_that_can_not_be_used_is_a_usage_error(tmp_path: Path, impl: str, said: str) -> None:
    ended = judge(tmp_path, impl)
    assert ended.returncode == 4
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) <= 3


def test_the_laws_without_an_implementation_are_a_usage_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    ended = run(tmp_path, "--pyargs", "kvproof_suites")
    assert ended.returncode == 4
    assert "--impl=NAME" in ended.stderr
    assert "triton" in ended.stderr


def test_a_run_that_does_not_use_kvproof_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("import sys\ndef test_lean():\n    assert 'torch' not in sys.modules\n")
    ended = run(tmp_path, "-q")
    assert ended.returncode == 0, ended.stdout


def test_an_option_that_somebody_else_owns_stays_theirs_and_ours_keeps_its_long_name(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--device', default='theirs')\n"
    )
    (tmp_path / "test_theirs.py").write_text(
        "def test_device(pytestconfig):\n"
        "    assert pytestconfig.getoption('--device') == 'mine'\n"
        "    assert pytestconfig.getoption('--kvproof-device') == 'cpu'\n"
    )
    ended = run(tmp_path, "-q", "--device=mine", "--kvproof-device=cpu")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_device_that_is_missing_is_an_error_and_not_a_fallback(tmp_path: Path) -> None:
    ended = judge(tmp_path, "mine:kernel", "--device=cuda:7")
    assert ended.returncode == 4
    assert "finds no CUDA device" in ended.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--device=frog", "--device=frog"),
        ("--seed=99999999999999999999999", "give a number from 0 to 2^63 - 1"),
        ("--churned=mine.py", "--churned: mine.py"),
        ("--results=mine.py", "--results=mine.py"),
    ],
)
def test_a_value_that_makes_no_sense_is_a_usage_error_and_no_verdict(tmp_path: Path, option: str, said: str) -> None:
    ended = judge(tmp_path, "mine:kernel", option)
    assert ended.returncode == 4, ended.stdout
    assert said in ended.stderr + ended.stdout
    assert "verdict" not in ended.stdout


@pytest.mark.parametrize(
    ("impl", "said"),
    [
        ("mine:sly", "the implementation raised Skipped"),
        ("mine:wordless", "unsupported(spec) returned ''"),
    ],
)
def test_an_implementation_can_not_excuse_itself(tmp_path: Path, impl: str, said: str) -> None:
    ended = judge(tmp_path, impl, "-x")
    assert ended.returncode == 1, ended.stdout
    assert said in ended.stdout


def test_collecting_alone_leaves_no_records(tmp_path: Path) -> None:
    ended = judge(tmp_path, "mine:kernel", "--collect-only")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not (tmp_path / "judged").exists()
