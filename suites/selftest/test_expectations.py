"""Known failures are precise: the law, the test, the kind of failure, the versions; and strict, both ways."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof_impls.registry import Implementation
from kvproof_reports.records import read_run
from kvproof_suites.expectations import EXPECTED, apply_expectations, read_expectations

KERNELS = """
import torch
from kvproof_impls import from_function

def attend(query, key_pool, value_pool, block_tables, context_lens, query_start, *, scale, later=0):
    out, size, group = torch.empty_like(query), key_pool.shape[1], query.shape[1] // key_pool.shape[2]
    for i, n in enumerate(context_lens.tolist()):
        q, t = query[query_start[i] : query_start[i + 1]].float(), torch.arange(n)
        block, slot = block_tables[i, t // size].long(), t % size
        k, v = (pool[block, slot].float().repeat_interleave(group, 1) for pool in (key_pool, value_pool))
        s = torch.einsum("qhd,khd->hqk", q, k) * scale
        p = s.masked_fill(~torch.ones(s.shape[1:], dtype=bool).tril(n - len(q) + later), -torch.inf).softmax(-1)
        out[query_start[i] : query_start[i + 1]] = torch.einsum("hqk,khd->qhd", p, v)
    return out

def crash(query, *tensors, scale):
    raise RuntimeError("illegal instruction")

def interrupt(query, *tensors, scale):
    raise KeyboardInterrupt

Right = from_function(attend)
Wrong = from_function(lambda *args, scale: attend(*args, scale=scale, later=1))
Crash = from_function(crash)
CrashAsKnown = from_function(crash)
Newer = from_function(lambda *args, scale: attend(*args, scale=scale, later=1))
Newer.version = "2.9.0.dev3"
Interrupt = from_function(interrupt)
Picky = from_function(attend, unsupported=lambda spec: "runs on Sundays only")
"""

KNOWN = """
[[expect]]
law = "G18"
test = "*[[]mine:Wrong-*"
status = "not yet"
reason = "no causal mask"
link = "https://example.org/1"

[[expect]]
test = "*past_the_causal*[[]mine:Right-*"
reason = "was broken once"

[[expect]]
law = "G18"
test = "*[[]mine:Crash-*"
reason = "gives wrong values"

[[expect]]
law = "G18"
test = "*[[]mine:CrashAsKnown-*"
status = "cannot"
reason = "this processor lacks the instruction"
raises = "RuntimeError"

[[expect]]
law = "G18"
test = "*[[]mine:Newer-*"
reason = "wrong until 2.9"
versions = "<2.9"
"""

CAUSAL = "past_the_causal_limit and 17q17k"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(KERNELS, encoding="utf-8")
    (folder / "known.toml").write_text(KNOWN, encoding="utf-8")
    (folder / "stale.toml").write_text('[[expect]]\ntest = "*no_such_test*"\nreason = "gone"\n', encoding="utf-8")
    (folder / "faulty.py").write_text("def pytest_runtest_logreport(report):\n    raise OSError('disk is full')\n")
    return folder


def judge(folder: Path, impl: str, *more: str, package: str = "kvproof_suites") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        package,
        f"--impl={impl}",
        "--isolate=no",
    ]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(
        [*command, *more], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def judged(folder: Path) -> subprocess.CompletedProcess[str]:
    """One run over all the kernels with the expectations above; not -q, so that the whole summary is there."""
    names = ",".join(f"mine:{name}" for name in ("Wrong", "Right", "Crash", "CrashAsKnown", "Newer"))
    return judge(folder, names, "--expect=known.toml", "-k", CAUSAL, "--results=judged", "-v")


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("Wrong", "known_broken", "not yet: no causal mask (https://example.org/1)"),
        ("CrashAsKnown", "known_broken", "cannot: this processor lacks the instruction"),
        ("Right", "error", "no longer known: known.toml: [[expect]] 2 lists this as broken, and it passes"),
        ("Crash", "broken", "RuntimeError: illegal instruction"),
        ("Newer", "broken", "G18 needle is broken"),
    ],
)
def test_only_the_failure_that_is_listed_is_known(
    folder: Path, judged: subprocess.CompletedProcess[str], name: str, outcome: str, reason: str
) -> None:
    assert judged.returncode == 1, judged.stdout
    (law,) = [r for r in read_run(folder / "judged").latest("law") if r["implementation"] == f"mine:{name}"]
    assert law["outcome"] == outcome
    assert reason in law["reason"]


def test_the_summary_keeps_what_can_not_be_from_what_is_not_yet(judged: subprocess.CompletedProcess[str]) -> None:
    assert "mine:Wrong: 1 known broken (1 not yet)\n" in judged.stdout
    assert "mine:CrashAsKnown: 1 known broken (1 cannot)\n" in judged.stdout
    assert "verdict: does not conform: 2 broken, 1 error, 2 known broken" in judged.stdout


def test_an_entry_that_names_no_test_of_a_whole_run_is_a_usage_error(folder: Path) -> None:
    ended = judge(folder, "mine:Right", "--expect=stale.toml", "--collect-only")
    assert ended.returncode == 4
    assert "stale.toml: [[expect]] 1: any law '*no_such_test*' names no test of mine:Right" in ended.stderr


def test_in_a_run_of_chosen_tests_an_entry_may_name_none(folder: Path) -> None:
    package = "kvproof_suites.kernel.test_needle"
    ended = judge(folder, "mine:Right", "--expect=stale.toml", "-k", CAUSAL, "--results=part", package=package)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("mine:Right",), 0, "verdict: conforms: 1 verified"),
        (("mine:Wrong",), 1, "verdict: does not conform: 1 broken"),
        (("mine:Right", "--min-verified=2"), 1, "verified too little: 1 verified; --min-verified asks for 2"),
        (("mine:Right", "--min-verified=1"), 0, "verdict: conforms"),
        (("mine:Interrupt",), 2, "verdict: nothing was verified"),
        (("mine:Right", "-p", "faulty"), 3, "OSError: disk is full"),
        (("mine:right",), 4, "AttributeError"),
        (("mine:Right", "--expect=absent.toml"), 4, "absent.toml"),
        (("mine:Picky",), 5, "verdict: nothing was verified: 1 refused by declaration"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else None,
)
def test_the_exit_code_says_what_became_of_the_run(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    impl, *more = arguments
    ended = judge(
        folder, impl, "-k", CAUSAL, f"--results={tmp_path}", *more, package="kvproof_suites.kernel.test_needle"
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert said in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[expect]\n", "known.toml: "),
        ("[[expected]]\n", "known.toml: unknown table 'expected'; entries are written under [[expect]]"),
        ("[expect]\nlaw='G18'\n", "known.toml: [expect] is one table"),
        ("[[expect]]\nreason='r'\n", "known.toml: [[expect]] 1: names neither a law nor a test pattern"),
        ("[[expect]]\nlaw='G18'\n", "known.toml: [[expect]] 1: reason is missing"),
        ("[[expect]]\nlaw='G18'\nreason=''\n", "[[expect]] 1: reason is ''; it must be a text that is not empty"),
        ("[[expect]]\nlaw='G18'\nreason='r'\nwhy='w'\n", "[[expect]] 1: unknown field 'why'; known: law, link, raises"),
        ("[[expect]]\nlaw='Z9'\nreason='r'\n", "[[expect]] 1: law 'Z9' is not one of "),
        ("[[expect]]\nlaw='G18'\nreason='r'\nstatus='bad'\n", "status 'bad' is not one of cannot, not yet, broken"),
        ("[[expect]]\nlaw='G18'\nreason='r'\nversions='new'\n", "versions 'new' is no version specifier"),
        ("[[expect]]\nlaw='G18'\nreason='r'\ntier='late'\n", "tier 'late' is not one of smoke, full, nightly"),
        ("[[expect]]\nlaw='G18'\nreason='r'\nversions=2\n", "versions is 2; it must be a text"),
        ("[[expect]]\nlaw='G18'\nreason='r'\nraises='Oops'\n", "raises 'Oops' names no exception"),
        ("[[expect]]\nlaw='G18'\nreason='r'\nraises='math.pi'\n", "raises 'math.pi' names no exception"),
        ("[[expect]]\nlaw='G18'\nreason='r'\n[[expect]]\nlaw='G1'\n", "[[expect]] 2: reason is missing"),
    ],
)
def test_a_fault_of_the_file_is_told_by_entry_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(pytest.UsageError) as told:
        read_expectations(path)
    assert said in str(told.value)


def test_a_version_that_is_not_told_can_not_be_compared(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text("[[expect]]\nlaw='G18'\nreason='r'\nversions='<2'\n", encoding="utf-8")
    with pytest.raises(pytest.UsageError, match="can't be compared with version None of mine"):
        apply_expectations([item("kernel", "G18")], {"mine": Implementation("mine")}, [path], [])


def item(folder: str, law: str, name: str = "mine") -> Any:
    """As much of a collected test as an expectation looks at."""
    marker = SimpleNamespace(args=(law,))
    return SimpleNamespace(
        nodeid=f"{folder}/test_it.py::test_it[{name}]",
        path=Path(folder) / "test_it.py",
        callspec=SimpleNamespace(params={"kernel": name}),
        get_closest_marker=lambda kind: marker,
        add_marker=lambda mark: None,
        stash=pytest.Stash(),
    )


@pytest.mark.parametrize(
    ("version", "stale"), [("1.5", True), ("2.0", False)], ids=["inside its versions", "outside its versions"]
)
def test_an_entry_outside_its_versions_rests_and_is_not_stale(tmp_path: Path, version: str, stale: bool) -> None:
    path = tmp_path / "known.toml"
    path.write_text("[[expect]]\nlaw='G1'\nreason='r'\nversions='<2'\n", encoding="utf-8")
    whole = [item(folder, "G18") for folder in ("allocator", "kernel", "engine")]
    mine = {"mine": Implementation("mine", version=version)}
    if stale:
        with pytest.raises(pytest.UsageError, match="names no test of mine"):
            apply_expectations(whole, mine, [path], ["suites"])
    else:
        apply_expectations(whole, mine, [path], ["suites"])


def test_an_entry_of_a_given_file_needs_a_test_of_one_implementation_only(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text("[[expect]]\ntest='*[[]other[]]'\nreason='r'\n", encoding="utf-8")
    whole = [item(folder, "G18", name) for folder in ("allocator", "kernel", "engine") for name in ("mine", "other")]
    apply_expectations(whole, {name: Implementation(name) for name in ("mine", "other")}, [path], ["suites"])


@pytest.mark.parametrize(("tier", "counts"), [("smoke", False), ("full", True), ("nightly", True)])
def test_an_entry_counts_from_the_tier_that_shows_it(tmp_path: Path, tier: str, counts: bool) -> None:
    path = tmp_path / "known.toml"
    path.write_text("[[expect]]\nlaw='G18'\nreason='r'\ntier='full'\n", encoding="utf-8")
    one = item("kernel", "G18")
    apply_expectations([one], {"mine": Implementation("mine")}, [path], ["suites"], tier)
    assert (EXPECTED in one.stash) is counts
