"""``python -m selftest.nightly.soak SECONDS [SEED]``: random laws on random implementations, in one process, over and
over; prints what the process holds after each round, and fails when that grows.

A round is the same handful of (implementation, file of laws), in another order and on other data, so that two rounds
need the same memory and what is left of one is a leak of the harness: of its records, its plugin, its oracle.
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from kvproof_reports.records import read_run

ALLOCATORS = ("reference", "paged", "paged-python", "contiguous-max")
KERNELS = ("torch", "cpu")
FILES = {"allocator": ALLOCATORS, "kernel": KERNELS}
SLOW = {"test_machine", "test_many", "test_graph"}
"""Minutes a file, or nothing to do without a GPU."""
SECONDS_A_TASK = 5
ROUNDS = 12
WARM_UP = 2
"""Rounds after which everything is imported, compiled and cached that a round needs."""
FEWEST = 8
"""Rounds after the warm-up. A steady leak is also the spread of each half: over halves of h rounds it is found where
h > SIGMAS · sqrt(h / 6), from h = 3 on."""
ARENA_BYTES = 1 << 20
"""Python asks the system for memory in pieces of this size, so that one more is no growth."""
SIGMAS = 4
"""Chance passes this once in 16,000 comparisons."""


class Held(NamedTuple):
    """By the process, after a round."""

    resident_bytes: int
    blocks: int
    """Objects of Python, as its allocator counts them."""


def held() -> Held:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), sys.getallocatedblocks())


def deck(num_tasks: int, rng: random.Random) -> list[tuple[str, str]]:
    """(implementation, module of laws), allocators and kernels in turn."""
    root, found = Path(__file__).parents[2] / "kvproof_suites", []
    kinds = list(FILES)
    files = {kind: sorted(p.stem for p in (root / kind).glob("test_*.py") if p.stem not in SLOW) for kind in kinds}
    for place in range(num_tasks):
        kind = kinds[place % len(kinds)]
        found.append((rng.choice(FILES[kind]), f"kvproof_suites.{kind}.{rng.choice(files[kind])}"))
    return found


def judge(implementation: str, module: str, seed: int) -> int:
    """Run the laws of one file; how many tests there were.

    Raises:
        RuntimeError: one of them did not pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--kvproof-impl={implementation}", f"--kvproof-seed={seed}", f"--kvproof-results={folder}/run"]
        options += ["--kvproof-isolate=no", "--kvproof-tier=smoke", "-p", "no:cacheprovider", "-qq", "--no-header"]
        code = pytest.main(["--pyargs", module, *options])
        records = read_run(Path(folder, "run")).latest("law")
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and any(
            record["outcome"] in ("broken", "error") for record in records
        ):
            raise RuntimeError(f"{implementation} under {module} with seed {seed}: exit code {code}")
        return len(records)


def bound(levels: Sequence[float], granularity: float) -> float:
    """How far the means of two halves of ``levels`` may lie apart by chance: their standard error, from what the
    levels of one half differ among themselves, SIGMAS times; and one piece that memory is asked for in."""
    half = len(levels) // 2
    spread = math.sqrt((statistics.variance(levels[:half]) + statistics.variance(levels[-half:])) / 2)
    return SIGMAS * spread * math.sqrt(2 / half) + granularity


def growth(levels: Sequence[float]) -> float:
    half = len(levels) // 2
    return statistics.fmean(levels[-half:]) - statistics.fmean(levels[:half])


def verdict(rounds: Sequence[Held], tests_a_round: int) -> list[str]:
    """What grew, with the figures; empty where nothing did. Of objects, one a test of a single round is no growth."""
    grew = []
    for name, granularity in (("resident_bytes", ARENA_BYTES), ("blocks", tests_a_round)):
        levels = [float(getattr(one, name)) for one in rounds]
        found, most = growth(levels), bound(levels, granularity)
        told = f"{name}: {found:+,.0f} from one half of {len(levels)} rounds to the other, {most:,.0f} allowed"
        print(told, flush=True)
        grew += [told] if found > most else []
    return grew


def soak(seconds: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    tasks = deck(max(2, int(seconds / SECONDS_A_TASK / ROUNDS)), rng)
    print(json.dumps({"seed": seed, "tasks": tasks}), flush=True)
    end, rounds, num_tests = time.monotonic() + seconds, list[Held](), 0
    while time.monotonic() < end or len(rounds) < WARM_UP + FEWEST:
        rng.shuffle(tasks)
        num_tests = sum(judge(*task, seed=rng.randrange(2**32)) for task in tasks)
        rounds.append(held())
        print(f"round {len(rounds)}: {num_tests} tests, {rounds[-1].resident_bytes / 2**20:,.1f} MiB resident, "
              f"{rounds[-1].blocks:,} objects", flush=True)  # fmt: skip
    return verdict(rounds[WARM_UP:], num_tests)


if __name__ == "__main__":
    grew = soak(float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else int(time.time()))
    sys.exit("\n".join(grew) or 0)
