"""Every wrong implementation dies, by the law meant for it; the right ones that they are made from obey every law."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvproof_reports.records import read_run
from selftest.wrong.meant_laws import CATALOGUES, MEANT, impl_name

SUITES = Path(__file__).parent.parent
RIGHT = (
    "selftest.wrong.right_kernel:RightKernel",
    "selftest.wrong.right_split_kernel:RightSplitKernel",
    "selftest.wrong.right_cascade_kernel:RightCascadeKernel",
    "selftest.wrong.right_storage_kernel:RightStorageKernel",
    "selftest.wrong.right_allocators:SmallWindow",
    "selftest.wrong.right_allocators:SmallCompiledWindow",
    "paged-fifo",
    "paged-leaf",
    "paged-all",
)

Broken = dict[str, dict[str, set[str]]]


def judge(names: Iterable[str], results: Path) -> Broken:
    """Implementation to outcome to laws, at the smoke tier: of a wrong one the law meant for it, of a right one all."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(SUITES / "kvproof_suites"),
        f"--impl={','.join(names)}",
        "--isolate=no",
        "-q",
    ]
    command += ["--tb=no", "-p", "no:cacheprovider", "-p", "selftest.wrong.meant_laws", f"--results={results}"]
    path = os.pathsep.join([str(SUITES), os.environ.get("PYTHONPATH", "")])
    # Two processes with two threads each would only wait for one another on two cores.
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode in (0, 1), f"the run itself went wrong:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    found: Broken = defaultdict(lambda: defaultdict(set))
    for law in read_run(results).latest("law"):
        found[law["implementation"]][law["outcome"]].add(law["law"])
    return found


@pytest.mark.parametrize("family", CATALOGUES)
def test_every_wrong_implementation_dies_by_the_law_meant_for_it(family: str, tmp_path: Path) -> None:
    names = [impl_name(family, wrong) for wrong in CATALOGUES[family].values()]
    outcomes = judge(names, tmp_path)
    survivors = [name for name in names if MEANT[name] not in outcomes[name]["broken"]]
    assert not survivors, "\n".join(f"{name} obeys {MEANT[name]}: {dict(outcomes[name])}" for name in survivors)


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_implementations_that_they_are_made_from_break_nothing(name: str, tmp_path: Path) -> None:
    outcomes = judge([name], tmp_path)[name]
    assert outcomes["verified"]
    assert not outcomes["broken"] | outcomes["error"]


def test_the_catalogue_names_each_mistake_once() -> None:
    assert len(MEANT) == sum(map(len, CATALOGUES.values()))
