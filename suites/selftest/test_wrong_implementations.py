"""Every wrong implementation dies, by the law meant for it; the right ones that they are made from obey every law."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from kvproof_reports.records import read_run
from selftest.wrong.meant_laws import CATALOGUES, MEANT

SUITES = Path(__file__).parent.parent
RIGHT = ("selftest.wrong.right_kernel:RightKernel", "paged", "selftest.wrong.right_allocators:SmallWindow")

Broken = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """Implementation to outcome to laws, from one run of the smoke tier over all of them."""
    results = tmp_path_factory.mktemp("kill")
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(SUITES / "kvproof_suites"),
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "selftest.wrong.meant_laws", f"--results={results}", f"--impl={','.join((*RIGHT, *MEANT))}"]
    path = os.pathsep.join([str(SUITES), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 1, f"the run of wrong implementations must fail, and only fail:\n{ended.stdout[-2000:]}"
    found: Broken = defaultdict(lambda: defaultdict(set))
    for law in read_run(results).latest("law"):
        found[law["implementation"]][law["outcome"]].add(law["law"])
    return found


@pytest.mark.parametrize("name", [*MEANT])
def test_a_wrong_implementation_dies_by_the_law_meant_for_it(outcomes: Broken, name: str) -> None:
    assert MEANT[name] in outcomes[name]["broken"], f"{name} obeys {MEANT[name]}; outcomes: {dict(outcomes[name])}"


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_implementation_breaks_nothing(outcomes: Broken, name: str) -> None:
    assert outcomes[name]["verified"]
    assert not outcomes[name]["broken"] | outcomes[name]["error"]


def test_the_catalogue_names_each_mistake_once() -> None:
    assert len(MEANT) == sum(map(len, CATALOGUES.values()))
