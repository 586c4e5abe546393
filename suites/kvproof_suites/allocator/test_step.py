"""A decode step in one call: its tensors say what the tables say, for every row, whatever the step before was."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require
from kvproof_suites.allocator.probes import refused
from kvproof_suites.allocator.steps import append_step, commit_step

NUM_BLOCKS = 32


@pytest.fixture(autouse=True)
def _needs_append_step(make_allocator):
    require(make_allocator, "append_step")


def admit(driver, **num_tokens: int) -> None:
    for seq, count in num_tokens.items():
        driver.allocate(seq, driver.fresh_tokens(count))


def blocks_apart(driver) -> None:
    """Leave holes, so that the next sequences get blocks that are not neighbours."""
    for hole in range(6):
        driver.allocate(("hole", hole), driver.fresh_tokens(1))
    for hole in (4, 0, 2):
        driver.free(("hole", hole))


@pytest.mark.law("E1", "A7")
def test_every_row_gets_its_slot_across_block_boundaries_that_lie_apart(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    blocks_apart(driver)
    admit(driver, a=0, b=1, c=block_size - 1, d=block_size, e=block_size + 1)
    for token in range(block_size + 1):
        append_step(driver, "abcde", [token] * 5)


@pytest.mark.law("E1", "A1")
def test_a_step_gives_what_single_appends_give(drive, make_allocator, block_size):
    require(make_allocator, "fork")
    together, one_by_one = drive(NUM_BLOCKS, block_size), drive(NUM_BLOCKS, block_size)
    for driver in (together, one_by_one):
        admit(driver, a=block_size + 1, b=block_size)
        for child in "cd":
            driver.fork("a", child)
    for token in range(block_size + 1):
        append_step(together, "cabd", [token] * 4)
        for seq in "cabd":
            one_by_one.append(seq, [token])
        sizes = [{seq: len(table) for seq, table in driver.tables.items()} for driver in (together, one_by_one)]
        assert sizes[0] == sizes[1], "E1: a step grows the tables otherwise than single appends"
        assert together.num_free() == one_by_one.num_free(), "E1: a step takes other blocks than single appends"


@pytest.mark.law("C1", "C2", "A3")
@pytest.mark.parametrize("rows", ["ab", "ba", "abc", "cab", "bc", "a"])
def test_rows_that_share_their_last_block_part_in_one_step(drive, make_allocator, block_size, rows):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", [1] * (2 * block_size - 1))
    for child in "bc":
        driver.fork("a", child)
    for token in range(2):
        append_step(driver, rows, [token + i for i in range(len(rows))])
    for seq in "abc":
        driver.append(seq, [9])


@pytest.mark.law("E2", "E1")
def test_a_step_after_a_wider_and_longer_one_shows_nothing_of_it(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    admit(driver, wide=6 * block_size, a=1, b=block_size, c=1)
    for rows in (["wide", "a", "b", "c"], ["b"], ["c", "wide"], ["a", "b", "c", "wide"], ["c", "a"]):
        append_step(driver, rows, range(len(rows)))


@pytest.mark.law("E2", "E1")
def test_a_row_whose_request_ended_shows_the_request_that_took_its_place(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    admit(driver, a=2 * block_size, b=2 * block_size, c=2 * block_size)
    append_step(driver, "abc", [1, 2, 3])
    driver.free("b")
    admit(driver, d=2 * block_size)
    append_step(driver, "adc", [1, 2, 3])
    driver.free("a")
    append_step(driver, "cd", [1, 2])


@pytest.mark.law("E2", "E1")
def test_a_table_that_was_cut_and_grew_again_is_shown_as_it_is(drive, make_allocator, block_size):
    require(make_allocator, "truncate")
    driver = drive(NUM_BLOCKS, block_size)
    admit(driver, a=3 * block_size, b=3 * block_size)
    append_step(driver, "ab", [1, 2])
    for seq in "ab":
        driver.truncate(seq, block_size)
    for token in range(2 * block_size):
        append_step(driver, "ba", [token, token])


@pytest.mark.law("B10")
def test_only_blocks_that_every_row_names_are_called_common(drive, make_allocator, block_size):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    admit(driver, a=2 * block_size, stranger=2 * block_size)
    for child in "bc":
        driver.fork("a", child)
    for rows in (["a", "b", "c"], ["a", "stranger"], ["stranger", "b"], ["c"]):
        append_step(driver, rows, range(len(rows)))


@pytest.mark.law("A6")
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_a_step_that_does_not_fit_appends_no_row(drive, block_size, spare):
    driver = drive(8, block_size)
    admit(driver, a=block_size, b=block_size, c=block_size)
    driver.allocate("filler", driver.fresh_tokens((driver.num_free() - spare) * block_size))
    with pytest.raises(MemoryError):
        append_step(driver, "abc", [1, 2, 3])
    driver.free("filler")
    append_step(driver, "abc", [1, 2, 3])


@pytest.mark.law("A6")
@pytest.mark.parametrize("spare", [0, 1])
def test_a_step_whose_copies_do_not_fit_appends_no_row(drive, make_allocator, spare):
    require(make_allocator, "fork")
    driver = drive(8, 4)
    admit(driver, a=5)
    for child in "bc":
        driver.fork("a", child)
    driver.allocate("filler", driver.fresh_tokens((driver.num_free() - spare) * 4))
    with pytest.raises(MemoryError):
        append_step(driver, "abc", [1, 2, 3])
    driver.free("filler")
    append_step(driver, "abc", [1, 2, 3])


@pytest.mark.law("E5")
@pytest.mark.parametrize("rows", [["a", "ghost"], ["ghost", "a"], ["a", "b", "a"]], ids=" ".join)
def test_a_batch_with_a_row_that_can_not_be_appends_nothing(drive, rows):
    driver = drive(NUM_BLOCKS, 4)
    admit(driver, a=4, b=4)
    refused(driver, KeyError, "append_step", rows, [1] * len(rows))


@pytest.mark.law("E5")
@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]], ids=str)
def test_a_batch_with_too_few_or_too_many_tokens_appends_nothing(drive, tokens):
    driver = drive(NUM_BLOCKS, 4)
    admit(driver, a=4, b=4)
    refused(driver, ValueError, "append_step", ["a", "b"], tokens)


@pytest.mark.law("E4")
def test_a_step_keeps_its_tensors_while_the_next_is_prepared(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    admit(driver, a=1, b=block_size, c=2)
    for seqs in ("abc", "abc", "ca", "cab", "b", "bca"):
        append_step(driver, seqs, [7] * len(seqs))


@pytest.mark.law("B8")
def test_a_batch_that_is_committed_in_one_call_is_found_row_by_row(drive, make_allocator, block_size):
    require(make_allocator, "commit", "commit_step", "cached_prefix")
    together, one_by_one = drive(NUM_BLOCKS, block_size), drive(NUM_BLOCKS, block_size)
    for driver in (together, one_by_one):
        admit(driver, a=block_size - 1, b=2 * block_size - 1, c=block_size)
        for seq in "abc":
            driver.commit(seq)  # before a window lets go of what is never published then
        append_step(driver, "abc", [1, 2, 3])
    commit_step(together, "abc")
    for seq in "abc":
        one_by_one.commit(seq)  # some publish output when the request ends, and find less here, either way
    for seq in "abc":
        found, want = (d.ask("cached_prefix", [*d.live[seq].tokens, 0], ()) for d in (together, one_by_one))
        together.require("B8", found == want, f"{found} tokens of {seq!r} are found; {want} after single commits")


@pytest.mark.law("E5")
def test_a_commit_of_a_batch_with_a_stranger_commits_nothing(drive, make_allocator, block_size):
    require(make_allocator, "commit_step")
    driver = drive(NUM_BLOCKS, block_size)
    admit(driver, a=block_size + 1, b=block_size + 1)
    refused(driver, KeyError, "commit_step", ["a", "nobody"])
    refused(driver, KeyError, "commit_step", ["nobody", "b"])
