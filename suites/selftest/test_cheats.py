"""Who cheats is caught: by data that is new, by data of another kind, by another seed, by a clock that is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof_reports.records import read_run
from selftest.cheats import BOOK

CHEATS = "selftest.cheats"
NEEDLE = ("kvproof_suites.kernel.test_needle", "-k", "test_nothing_past_the_causal_limit_is_found")
BUDGET = ("kvproof_suites.kernel.test_budget", "-k", "test_every_element_is_within_its_bound")


def outcomes(folder: Path, cheat: str, suite: tuple[str, ...], *options: str) -> dict[str, set[str | None]]:
    """Law to the outcomes of its tests, each with how the worker ended where it died."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--pyargs", *suite]
    command += [f"--kvproof-impl={CHEATS}:{cheat}", "--kvproof-results=judged", "--kvproof-tier=smoke", *options]
    folder.mkdir()
    environment = {**os.environ, BOOK: str(folder.parent / "book")}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False)
    found: dict[str, set[str | None]] = {}
    for law in read_run(folder / "judged").latest("law"):
        found.setdefault(law["law"], set()).add(law.get("status") or law["outcome"])
    return found


def test_a_kernel_that_keeps_results_by_shape_is_caught_by_new_data(tmp_path):
    assert "broken" in outcomes(tmp_path / "run", "by_shape", BUDGET)["G1"]


def test_a_kernel_that_knows_the_data_of_needles_is_caught_by_data_of_another_kind(tmp_path):
    assert outcomes(tmp_path / "needle", "needles", NEEDLE) == {"G18": {"verified"}}, "it fools one law"
    assert "broken" in outcomes(tmp_path / "budget", "needles", BUDGET)["G1"]


def test_a_kernel_that_knows_the_data_of_one_seed_is_caught_by_another(tmp_path):
    assert outcomes(tmp_path / "first", "by_heart", NEEDLE) == {"G18": {"verified"}}
    with (tmp_path / "book").open("a") as book:
        book.write("closed\n")
    assert outcomes(tmp_path / "again", "by_heart", NEEDLE) == {"G18": {"verified"}}, "the same seed is the same data"
    assert "broken" in outcomes(tmp_path / "other", "by_heart", NEEDLE, "--kvproof-seed=1")["G18"]


def test_a_kernel_that_stops_the_clock_is_caught_by_who_looks_at_it(tmp_path):
    assert "tampered" in outcomes(tmp_path / "run", "clock", NEEDLE)["G18"]


def test_an_output_that_agrees_with_all_is_caught_by_its_type(tmp_path):
    assert outcomes(tmp_path / "run", "liar", NEEDLE)["G18"] == {"broken"}
    assert outcomes(tmp_path / "again", "liar", BUDGET)["G1"] == {"broken"}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
