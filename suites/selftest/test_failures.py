"""The story of a failure: what is wrong, where it lies together, what to paste, and what repeats it."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from kvproof_reports.records import read_run
from kvproof_suites.kernel.cases import Case, decode
from kvproof_suites.kernel.clusters import clusters, shares
from kvproof_suites.kernel.pages import Pages, repeat_rows
from kvproof_suites.outcome import Element
from kvproof_suites.repro.evidence import judged_launch, worst
from kvproof_suites.repro.recorder import Launched, RecordedKernel

SUITES = Path(__file__).parent.parent
DUPLICATES = "selftest.wrong.kernels:DuplicateABlock"
CRASHES = "crashing:kernel"

CRASHING = """
from kvproof_impls import from_function
def attend(query, *tensors, scale):
    raise IndexError("block 17 of 12")
kernel = from_function(attend)
"""


def judge(folder: Path, *more: str, impl: str = f"{DUPLICATES},{CRASHES}") -> subprocess.CompletedProcess[str]:
    (folder / "crashing.py").write_text(CRASHING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvproof_suites.kernel", "-p", "no:cacheprovider"]
    command += [
        f"--impl={impl}",
        "--isolate=no",
        "-k",
        "(every_position_is_found and 7q33k and b16) or (every_element and 7q33k)",
    ]
    path = os.pathsep.join([str(SUITES), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "300"}
    return subprocess.run(
        [*command, *more], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    ended = judge(folder, "--results=judged", "--junitxml=junit.xml", "--seed=7")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (folder / "said").write_text(ended.stdout, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def needle(folder: Path) -> list[str]:
    """The lines of the needle's story."""
    laws = read_run(folder / "judged").latest("law")
    return next(r["reason"] for r in laws if (r["implementation"], r["law"]) == (DUPLICATES, "G18")).splitlines()


def test_the_story_begins_with_the_law_and_ends_with_what_repeats_it(needle: list[str]) -> None:
    assert needle[0].startswith("G18 needle is broken: When one key outweighs all others")
    case, script, repeat, law = needle[-4:]
    assert eval(case.removeprefix("case: ")) == Case(((33, 7), (40, 16), (17, 2)))
    assert script.startswith("script:  judged/repro/G18-")
    assert repeat.startswith("repeat:  pytest --pyargs 'kvproof_suites.kernel.test_needle::")
    assert repeat.endswith(f"--impl={DUPLICATES} --seed=7")
    assert law == "law:     kvproof laws G18"


def test_the_story_says_in_which_blocks_the_errors_lie(needle: list[str]) -> None:
    assert "    by block: 1 (31 of 31), 6 (40 of 40), 11 (2 of 2)" in needle  # the second block of each sequence


def test_the_story_of_a_budget_has_the_error_over_its_bound(folder: Path) -> None:
    laws = read_run(folder / "judged").latest("law")
    told = next(r["reason"] for r in laws if (r["implementation"], r["law"]) == (DUPLICATES, "G1"))
    assert "error ÷ bound" in told
    assert "by sequence: " in told


def test_junit_has_the_law_as_its_message_and_the_story_as_its_text(folder: Path) -> None:
    failures = list(ET.parse(folder / "junit.xml").getroot().iter("failure"))
    messages = {failure.get("message", "") for failure in failures}
    assert any(message.startswith("G18 needle is broken: ") and "\n" not in message for message in messages)
    assert any("script:  judged/repro/" in (failure.text or "") for failure in failures)


def test_a_crash_keeps_its_traceback_and_has_the_story_after_it(folder: Path) -> None:
    laws = read_run(folder / "judged").latest("law")
    told = next(r["reason"] for r in laws if r["implementation"] == CRASHES)
    traceback, _, story = told.partition("G18 needle is broken")
    assert "IndexError: block 17 of 12" in traceback
    assert "script:  judged/repro/G18-" in story


def test_a_worker_tells_the_same_story(folder: Path, needle: list[str]) -> None:
    pytest.importorskip("xdist")
    ended = judge(folder, "--results=judged-again", "--seed=7", "-n", "1", impl=DUPLICATES)
    said = [line.replace("judged-again", "judged") for line in ended.stdout.splitlines()]
    assert set(needle) <= set(said), ended.stdout
    told = [law["reason"] for law in read_run(folder / "judged-again").latest("law") if law["outcome"] == "broken"]
    assert told
    assert not any(sys.executable in reason for reason in told), "whose interpreter it was is nobody's business"


def test_another_traceback_style_gives_the_source_back(folder: Path) -> None:
    ended = judge(folder, "--results=plain", "--tb=short", impl=DUPLICATES)
    assert "LawBroken" in ended.stdout
    assert "case:    Case(" not in ended.stdout


def pages() -> Pages:
    """Two sequences of two blocks of two slots, the second of them twice."""
    return repeat_rows(Pages(2, 8, ((3, 5), (6, 1)), (4, 4), (1, 1)), [1, 2])


def test_errors_are_counted_by_sequence_block_and_head_the_fullest_first() -> None:
    wrong = torch.tensor([[True, False], [True, True], [True, True]])
    assert clusters(pages(), wrong).splitlines() == [
        "  by sequence: 1 (4 of 4), 0 (1 of 2)",
        "  by block: 1 (4 of 4), 5 (1 of 2)",
        "  by head: 0 (3 of 3), 1 (2 of 3)",
    ]


def test_errors_are_counted_in_the_blocks_that_are_looked_for_and_what_is_not_judged_is_left_out() -> None:
    wrong = torch.tensor([[True, True], [True, True], [False, False]])
    looked_for = torch.tensor([[6, 6], [-1, -1], [12, 12]])
    assert "  by block: 3 (2 of 2)" in clusters(pages(), wrong, looked_for).splitlines()


def test_errors_that_are_everywhere_are_told_as_that() -> None:
    assert shares([1, 2, 2], [1, 2, 2]) == "all of 2"
    assert shares([1], [1]) == "1 (1 of 1)"
    assert shares(range(7), [*range(7), 6]) == "0 (1 of 1), 1 (1 of 1), 2 (1 of 1), 3 (1 of 1), and 3 more of 7"


def test_the_worst_element_of_each_of_the_worst_rows_is_shown() -> None:
    want = torch.zeros(9, 2, 3)
    got = want.clone()
    got[4, 1, 2], got[4, 0, 0], got[7, 0, 1], got[2, 0, 0] = 8, 9, torch.nan, 0.5
    shown = worst("out", got, want, torch.tensor(1.0))
    assert [element.at for element in shown] == [(7, 0, 1), (4, 0, 0)]
    assert shown[1] == Element("out", (4, 0, 0), 9.0, 0.0, 1.0)


def test_equal_infinities_are_no_error() -> None:
    lse = torch.tensor([[-torch.inf, 1.0]])
    assert worst("lse", lse, lse.clone(), torch.tensor(0.1)) == []


def test_the_launch_that_was_judged_is_found_by_what_it_gave() -> None:
    def gave(value: float) -> Launched:
        return Launched(None, torch.zeros(1), None, result=torch.full((1, 1, 1), value))  # type: ignore[arg-type]

    calls = [gave(1.0), gave(2.0), gave(3.0)]
    assert judged_launch(calls, [Element("out", (0, 0, 0), 2.0, 5.0, 0.1)]) == 1
    assert judged_launch(calls, [Element("out", (0, 0, 0), 9.0, 5.0, 0.1)]) == -1


class Kernel:
    pool_order = "HND"

    def plan(self, spec: object, batch: object, reuse: object = None) -> object:
        self.reused = reuse
        return lambda query, pools: (query, pools)


def test_a_recorded_kernel_is_the_kernel_in_all_that_it_declares() -> None:
    kernel = RecordedKernel(Kernel())
    assert kernel.pool_order == "HND"
    assert not hasattr(kernel, "write")
    assert getattr(kernel, "arithmetic", None) is None


def test_calls_are_kept_while_recording_and_forgotten_with_the_next_test() -> None:
    inner = Kernel()
    kernel = RecordedKernel(inner)
    assert not isinstance(kernel.plan(1, 2), type(kernel.start))  # type: ignore[arg-type]
    assert not kernel.calls
    kernel.start(recording=True)
    first = kernel.plan(1, 2)  # type: ignore[arg-type]
    kernel.plan(1, 2, reuse=first)  # type: ignore[arg-type]
    assert inner.reused is first.launch
    first("query", "pools")
    assert [type(call).__name__ for call in kernel.calls] == ["Planned", "Planned", "Launched"]
    kernel.start(recording=False)
    assert not kernel.calls
    assert Case(decode(1)).seqs == ((1, 1),)
