"""The smoke tier over every implementation, a few of them a process, and which laws each of them breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof_reports.records import read_run

SUITES = Path(__file__).parents[2]
PROCESS_SECONDS, TEST_SECONDS = 1800, 60
"""A mistake may loop for ever: a test, and a process, end as failures after this long."""


@dataclass
class Outcome:
    """What became of one implementation."""

    broken: set[str] = field(default_factory=set)
    verified: set[str] = field(default_factory=set)
    """Laws of which no test failed and at least one passed."""
    errors: set[str] = field(default_factory=set)
    """Laws of which a test could not be set up."""
    num_tests: int = 0
    """Tests that ran to a verdict."""


def judge_all(impls: Sequence[str], folder: Path, num_processes: int, per_process: int = 8) -> dict[str, Outcome]:
    """Outcome of each implementation; records are kept under ``folder``, a folder a process.

    What is recorded there to the end is not run again.
    """
    done = read_outcomes(folder)
    left = [impl for impl in impls if impl not in done]
    chunks = [left[start : start + per_process] for start in range(0, len(left), per_process)]
    first = 1 + max((int(path.name) for path in folder.glob("[0-9]*")), default=0)
    with ThreadPoolExecutor(num_processes) as pool:
        list(pool.map(judge_some, chunks, [folder / f"{first + number:03d}" for number in range(len(chunks))]))
    return read_outcomes(folder)


def judge_some(impls: Sequence[str], folder: Path) -> None:
    """One pytest process over ``impls``.

    Raises:
        RuntimeError: it did not end in a verdict; with the end of what it printed.
    """
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
    command += ["-p", "selftest.killtable.first_break", f"--timeout={TEST_SECONDS}", "--tier=smoke", "--device=cpu"]
    command += [f"--results={folder}", f"--impl={','.join(impls)}", "--isolate=no"]
    path = os.pathsep.join(filter(None, [str(SUITES), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command,
        env=environment,
        cwd=SUITES.parent,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
        check=False,
    )
    print(f"{folder.name}: {ended.stdout.strip().splitlines()[-1:]} {', '.join(impls)}", flush=True)
    if ended.returncode not in (0, 1):
        raise RuntimeError(f"exit code {ended.returncode} over {impls}:\n{ended.stdout[-3000:]}{ended.stderr[-1000:]}")


def read_outcomes(folder: Path) -> dict[str, Outcome]:
    """From the records of every process under ``folder`` that came to its end."""
    found: dict[str, Outcome] = defaultdict(Outcome)
    for results in sorted(folder.glob("*/results.jsonl")):
        if (run := read_run(results)).latest("end"):
            for record in run.latest("law"):
                add(found[record["implementation"]], record)
    for outcome in found.values():
        outcome.verified -= outcome.broken | outcome.errors
    return dict(found)


def add(outcome: Outcome, record: Mapping[str, Any]) -> None:
    sets = {"broken": outcome.broken, "verified": outcome.verified, "error": outcome.errors}
    if record["outcome"] in sets:
        sets[record["outcome"]].add(record["law"])
        outcome.num_tests += 1
