"""Benchmarks timed again, in a new process and as they were timed before, for the gate that could not tell."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvproof_suites.cli import run_folders
from kvproof_suites.options import OPTIONS

if TYPE_CHECKING:
    from kvproof_reports.gate import Compared
    from kvproof_reports.records import Run

OURS = ("results", "bench", "mlflow", "min-verified", "expect", "resume", "verified-by", "ray")
"""Options of the first run that a rerun sets itself or has no use for."""

OUR_TESTS = "kvproof_suites."


def run_again(unsettled: Sequence[Compared], runs: Sequence[Run], folder: Path) -> Run:
    """The records of ``folder``, a new one, in which the tests that timed ``unsettled`` ran once more.

    Raises:
        click.ClickException: the run was made elsewhere, does not say how, or names a test that is not ours; or nothing
            could be timed.
    """
    tests = {one.after["test"]: one for one in unsettled}
    if None in tests:
        raise click.ClickException(f"--rerun: {tests[None].where}: its record does not name the test that timed it")
    for test, one in tests.items():
        if not test.startswith(OUR_TESTS):  # it becomes an argument of pytest, which would take others for options
            raise click.ClickException(f"--rerun: {one.where}: {test!r} is no test of {OUR_TESTS}")
    by_run: dict[Path, list[str]] = {}
    for test in tests:
        by_run.setdefault(_run_of(test, runs).path, []).append(test)
    for path, nodes in by_run.items():
        _pytest(next(run for run in runs if run.path == path), nodes, folder)
    return run_folders.read([folder])[0]


def _run_of(test: str, runs: Sequence[Run]) -> Run:
    return next(run for run in runs if any(record["test"] == test for record in run.latest("benchmark")))


def _pytest(run: Run, nodes: Sequence[str], folder: Path) -> None:
    session = _require_same_machine(run)
    chosen = recorded_options(session["command"])
    words = [f"--kvproof-{name}={value}" for name, value in chosen.items()]
    if run.path.exists():
        words.append(f"--kvproof-verified-by={run.path}")
    command = [sys.executable, "-m", "pytest", "--pyargs", *nodes, *words]
    command += [f"--kvproof-results={folder}", "--kvproof-bench", "--benchmark-quiet", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        told = "\n".join((ended.stdout + ended.stderr).strip().splitlines()[-15:])
        raise click.ClickException(f"--rerun: pytest ended with {ended.returncode}:\n{told}")


def _require_same_machine(run: Run) -> Mapping[str, Any]:
    """The session that timed: the last one."""
    from kvproof_reports.schema import SESSION
    from kvproof_suites.environment import describe

    session = run.latest("session")[-1]
    here = describe(session["device"])
    known = {name for name in SESSION["environment"].fields or {} if name != "git_commit"}
    for name in sorted(known):
        there = session["environment"][name]
        if there is not None and there != here.get(name):
            told = f"{run.path} was made elsewhere: {name} {there}, and here it is {here.get(name)}"
            raise click.ClickException(f"--rerun: {told}; rerun where the run was made")
    return session


def recorded_options(command: Sequence[str]) -> dict[str, Any]:
    """Our options in a recorded command, by name; what it says to pytest alone is left out."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name, settings in OPTIONS.items():
        parser.add_argument(f"--kvproof-{name}", f"--{name}", dest=name, **{**settings, "default": argparse.SUPPRESS})
    found, _ = parser.parse_known_args(list(command[1:]))
    return {name: value for name, value in vars(found).items() if name not in OURS}
