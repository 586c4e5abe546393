"""Runs of the buddy system split and merge as Knuth describes, and leave the holes that they must."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof_impls.contiguous.buddy import BuddyPool


def test_a_run_is_halved_until_half_of_it_would_be_too_short() -> None:
    pool = BuddyPool(16)
    assert pool.take(3) == range(4)
    assert pool.free_runs() == [range(4, 8), range(8, 16)]
    assert pool.num_free == 12


def test_the_smallest_run_that_fits_is_taken() -> None:
    pool = BuddyPool(16)
    first, _second = pool.take(4), pool.take(4)
    pool.give(first)
    assert pool.take(2) == range(2)
    assert pool.free_runs() == [range(2, 4), range(8, 16)]


def test_buddies_that_are_free_merge_all_the_way_up() -> None:
    pool = BuddyPool(16)
    runs = [pool.take(1) for _ in range(16)]
    for run in runs:
        pool.give(run)
    assert pool.free_runs() == [range(16)]


def test_neighbours_that_are_no_buddies_stay_apart_and_are_of_no_use_together() -> None:
    pool = BuddyPool(4)
    runs = [pool.take(1) for _ in range(4)]
    pool.give(runs[1])
    pool.give(runs[2])
    assert sorted(run.start for run in runs[1:3]) == [1, 2]
    assert pool.num_free == 2
    with pytest.raises(MemoryError, match="no run of 2 consecutive blocks is free, though 2 are in all"):
        pool.take(2)


@pytest.mark.parametrize(
    ("num_blocks", "parts"), [(1, [1]), (24, [16, 8]), (15_700, [8192, 4096, 2048, 1024, 256, 64, 16, 4])]
)
def test_a_pool_whose_size_is_no_power_of_two_is_its_binary_parts(num_blocks: int, parts: list[int]) -> None:
    assert [len(run) for run in BuddyPool(num_blocks).free_runs()] == parts


def test_the_parts_of_a_pool_never_merge() -> None:
    pool = BuddyPool(24)
    large, small = pool.take(16), pool.take(8)
    pool.give(small)
    pool.give(large)
    assert pool.free_runs() == [range(16), range(16, 24)]
    assert not pool.fits(17)


@settings(max_examples=60, deadline=None)
@given(num_blocks=st.integers(1, 200), sizes=st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60))
def test_runs_never_overlap_are_aligned_and_come_back_whole(num_blocks: int, sizes: list[tuple[int, bool]]) -> None:
    pool, held = BuddyPool(num_blocks), []
    whole = pool.free_runs()
    for size, gives in sizes:
        if gives and held:
            pool.give(held.pop(size % len(held)))
        elif pool.fits(size):
            held.append(pool.take(size))
            assert size <= len(held[-1]) < 2 * size
        else:
            with pytest.raises(MemoryError):
                pool.take(size)
        runs = [*held, *pool.free_runs()]
        assert sorted(block for run in runs for block in run) == list(range(num_blocks))
        assert all(len(run) & (len(run) - 1) == 0 and run.start % len(run) == 0 for run in runs)
        assert pool.num_free == sum(map(len, pool.free_runs()))
    for run in held:
        pool.give(run)
    assert pool.free_runs() == whole
