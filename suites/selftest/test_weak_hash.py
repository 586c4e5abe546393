"""With a hash of 4 bits, where every second prefix collides, our allocators still find the right prefix or none."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from kvproof_impls.paged_python import PagedAllocator
from kvproof_reference import allocator as reference
from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.machine import machine_for

LAWS = ("B1", "B2", "B4", "B5", "B9")
NUM_HASHES = 16


class WeakName(NamedTuple):
    """A name that hashes to 4 bits; equality still compares all of it."""

    parent: Hashable
    tokens: tuple[int, ...]

    def __hash__(self) -> int:
        return hash((self.parent, self.tokens)) % NUM_HASHES


class WeakPaged(PagedAllocator):
    def _name(self, parent: Hashable, tokens: Iterable[int]) -> Hashable:
        return WeakName(parent, tuple(tokens))


@pytest.fixture(params=["paged", "reference"])
def weak(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Any]:
    if request.param == "paged":
        return WeakPaged
    strong = reference.chain_hash
    monkeypatch.setattr(reference, "chain_hash", lambda *args: strong(*args) % NUM_HASHES)
    return reference.ReferenceAllocator


def test_any_program_finds_what_it_should_in_spite_of_collisions(weak: Callable[[int, int], Any]) -> None:
    machine = machine_for(lambda num_blocks, block_size: Driver(weak(num_blocks, block_size), LAWS))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_all_prompts_over_two_tokens_are_told_apart_by_4_bits(weak: Callable[[int, int], Any]) -> None:
    driver = Driver(weak(64, 2), LAWS)
    for text in range(64):
        tokens = [text >> bit & 1 for bit in range(6)]
        driver.allocate("s", [*tokens, 0])
        driver.commit("s")
        driver.free("s")
