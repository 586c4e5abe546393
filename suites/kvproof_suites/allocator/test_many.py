"""A1, C1, E5: counts that outgrow a small integer: branches, readers, blocks, tables, and ids that look alike."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require


@pytest.mark.law("C1")
@pytest.mark.parametrize("num_branches", [4, 8, 17])
def test_a_block_with_many_owners_stays_until_the_last_has_left(drive, make_allocator, block_size, num_branches):
    require(make_allocator, "fork")
    driver = drive(2 * num_branches + 8, block_size)
    driver.allocate("root", [1] * (2 * block_size))
    for branch in range(num_branches):
        driver.fork("root", branch)
    driver.free("root")
    for branch in range(num_branches - 1):
        driver.free(branch)
    driver.allocate("stranger", [9] * (num_branches * block_size))
    driver.append(num_branches - 1, [2])


@pytest.mark.law("A3")
def test_a_cached_block_with_many_readers_stays_until_the_last_has_left(drive, make_allocator, block_size):
    require(make_allocator, "commit", "cached_prefix")
    driver = drive(32, block_size)
    for reader in range(18):
        driver.allocate(reader, [1] * block_size + [reader + 2])
        driver.commit(reader)
    for reader in range(17):
        driver.free(reader)
    driver.allocate("stranger", [99] * (driver.num_free() * block_size))


@pytest.mark.law("A1")
def test_a_pool_of_more_blocks_than_a_byte_counts(drive):
    driver = drive(300, 1)
    for seq in range(4):  # as many as one finds room for that reserves a quarter of the pool
        driver.allocate(seq, [seq] * 75)


@pytest.mark.law("A1")
def test_a_table_of_more_blocks_than_a_small_row_holds(drive):
    driver = drive(520, 1)
    driver.allocate("long", list(range(65)))
    for token in range(64):
        driver.append("long", [token])


@pytest.mark.law("E5")
def test_ids_that_look_alike_are_different_sequences(drive, block_size):
    driver = drive(16, block_size)
    ids = (1, "1", (1,), "(1,)")
    for token, seq in enumerate(ids):
        driver.allocate(seq, [token] * block_size)
    for token, seq in enumerate(ids):
        driver.append(seq, [token])
        driver.free(seq)


@pytest.mark.law("C1")
def test_an_append_of_nothing_parts_no_branches(drive, make_allocator, block_size):
    require(make_allocator, "fork")
    driver = drive(16, block_size)
    driver.allocate("a", [1] * (block_size + block_size // 2 + 1))
    driver.fork("a", "b")
    for seq in ("a", "b"):
        driver.append(seq, [])
    for seq in ("a", "b"):
        driver.append(seq, [2])


@pytest.mark.law("C1")
def test_both_branches_reserve_and_then_write(drive, make_allocator, block_size):
    require(make_allocator, "fork", "reserve")
    driver = drive(24, block_size)
    driver.allocate("a", [1] * (block_size + block_size // 2 + 1))
    driver.fork("a", "b")
    for seq in ("a", "b"):
        driver.reserve(seq, 2)
    for seq in ("a", "b"):
        driver.append(seq, [2])
