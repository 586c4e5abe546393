"""The harness holds no more after many runs than after a few: a quarter of an hour at night."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from selftest.nightly.soak import ARENA_BYTES, FEWEST, Held, deck, verdict

NIGHTLY = bool(os.environ.get("KVPROOF_NIGHTLY"))
SECONDS = int(os.environ.get("KVPROOF_SOAK_SECONDS", 900 if NIGHTLY else 0))
SLACK_SECONDS = 600
"""For the first rounds and the last, on a busy machine."""


@pytest.mark.skipif(not SECONDS, reason="not run: a quarter of an hour, in the nightly tier")
@pytest.mark.timeout(SECONDS + SLACK_SECONDS)
def test_memory_of_the_harness_is_flat_over_random_laws_on_random_implementations() -> None:
    command = [sys.executable, "-m", "selftest.nightly.soak", str(SECONDS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS + SLACK_SECONDS)
    lines = ended.stdout.splitlines()
    print("\n".join(line for line in lines if line.startswith(("{", "round", "resident", "blocks"))))
    assert ended.returncode == 0, f"{ended.stderr[-2000:]}\n{ended.stdout[-2000:]}"


def rounds(leak_bytes: int = 0, leak_objects: int = 0, noise: int = 200_000) -> list[Held]:
    rng = random.Random(0)
    return [
        Held(4 * 10**8 + i * leak_bytes + rng.randrange(noise), 10**6 + i * leak_objects + rng.randrange(500))
        for i in range(10)
    ]


def test_noise_alone_is_no_growth() -> None:
    assert verdict(rounds(), tests_a_round=300) == []


def test_a_leak_of_a_few_objects_a_test_is_growth() -> None:
    (told,) = verdict(rounds(leak_objects=4 * 300), tests_a_round=300)
    assert told.startswith("blocks")


def test_a_leak_of_native_memory_is_growth() -> None:
    (told,) = verdict(rounds(leak_bytes=ARENA_BYTES), tests_a_round=300)
    assert told.startswith("resident_bytes")


def test_a_steady_leak_is_growth_in_the_fewest_rounds_already() -> None:
    few = rounds(leak_objects=100 * 300, noise=1)[:FEWEST]
    assert len(verdict(few, tests_a_round=300)) == 1


def test_a_deck_has_allocators_and_kernels_and_repeats_with_its_seed() -> None:
    assert deck(6, random.Random(1)) == deck(6, random.Random(1))
    assert {module.split(".")[1] for _, module in deck(6, random.Random(1))} == {"allocator", "kernel"}
