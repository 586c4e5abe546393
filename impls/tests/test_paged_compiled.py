"""What only the compiled allocator promises: buffers that stay where they are, and the limits of its arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("numba")

from kvproof_impls.paged import PagedAllocator, entries
from kvproof_impls.paged.fields import MANY, SPENT, Fields
from kvproof_impls.paged.layout import BLOCK

STEP_TENSORS = ("block_tables", "slot_mapping", "context_lens", "query_start")


def addresses(batch) -> tuple[int, ...]:
    return tuple(getattr(batch, name).data_ptr() for name in STEP_TENSORS)


def test_two_sets_of_buffers_take_turns_at_fixed_addresses() -> None:
    allocator = PagedAllocator(64, 2, max_num_seqs=4, max_model_len=32)
    allocator.allocate("a", [1])
    seen = [addresses(allocator.append_step(["a"], [token])) for token in range(20)]
    assert seen[0] != seen[1]
    assert set(seen[::2]) == {seen[0]}
    assert set(seen[1::2]) == {seen[1]}


def test_a_step_in_flight_is_not_overwritten_by_the_next() -> None:
    allocator = PagedAllocator(64, 2)
    for seq in "ab":
        allocator.allocate(seq, [1])
    first = allocator.append_step(["a", "b"], [2, 2])
    before = [getattr(first, name).clone() for name in STEP_TENSORS]
    allocator.free("a")
    allocator.append_step(["b"], [3])
    assert all((getattr(first, name) == was).all() for name, was in zip(STEP_TENSORS, before, strict=True))


def test_a_stable_batch_gets_the_very_same_object_again() -> None:
    allocator = PagedAllocator(64, 2)
    for seq in "ab":
        allocator.allocate(seq, [1])
    steps = [allocator.append_step(["a", "b"], [token, token]) for token in range(4)]
    assert steps[0] is steps[2]
    assert steps[1] is steps[3]
    assert steps[2].context_lens_host == (4, 4)


@pytest.mark.parametrize("leaver", [0, 1, 2, 3])
def test_whoever_leaves_a_batch_that_fills_every_row_the_others_stay(leaver) -> None:
    allocator, seqs = PagedAllocator(64, 2, max_num_seqs=4), [0, 1, 2, 3]
    for seq in seqs:
        allocator.allocate(seq, [seq])
    allocator.append_step(seqs, [7] * 4)
    allocator.free(leaver)
    moved_up = [seq for seq in seqs if seq != leaver]
    batch = allocator.append_step(moved_up, [8] * 3)
    assert [row[0] for row in batch.block_tables.tolist()] == [allocator.block_table(seq)[0] for seq in moved_up]


def test_past_the_sizes_given_everything_grows_and_nothing_is_lost() -> None:
    allocator = PagedAllocator(256, 1, max_num_seqs=1, max_model_len=1)
    for seq in range(9):
        allocator.allocate(seq, [seq])
    for token in range(20):
        allocator.append_step(list(range(9)), [token] * 9)
    tables = [allocator.block_table(seq) for seq in range(9)]
    assert [len(table) for table in tables] == [21] * 9
    assert len({block for table in tables for block in table}) == 9 * 21


@pytest.mark.parametrize("tokens", [[2**31], [-(2**31) - 1], [1.0], ["1"], np.array([2**40]), np.array([0.5]), [[1]]])
def test_a_token_that_is_no_int32_is_refused_and_nothing_changes(tokens) -> None:
    allocator = PagedAllocator(8, 2)
    with pytest.raises(ValueError, match="tokens: "):
        allocator.allocate("a", tokens)
    assert allocator.num_free_blocks() == 8
    allocator.allocate("a", [1])
    with pytest.raises(ValueError, match="tokens: "):
        allocator.append("a", tokens)
    with pytest.raises(ValueError, match="tokens: "):
        allocator.append_step(["a"], tokens)
    assert allocator.append_step(["a"], [2]).context_lens.tolist() == [2]


def test_a_block_costs_32_bytes_and_a_token_slot_4() -> None:
    num_blocks, block_size = 1 << 12, 16
    with_cache = PagedAllocator(num_blocks, block_size).bookkeeping_bytes()
    without = PagedAllocator(num_blocks, block_size, prefix_caching=False).bookkeeping_bytes()
    assert BLOCK.itemsize + 4 == 32
    assert (with_cache - without) == 4 * num_blocks * block_size
    assert without < 32 * num_blocks + 100


def test_keys_that_nobody_bears_any_more_are_forgotten() -> None:
    allocator = PagedAllocator(4, 1)
    allocator.allocate("stays", [1, 2], ("tenant", "stays"))
    allocator.commit("stays")
    for visitor in range(3 * MANY):
        allocator.allocate("v", [5], ("tenant", visitor))
        allocator.free("v")
    assert len(allocator._fields._numbers) <= MANY + 2
    assert allocator.cached_prefix([1, 2, 0], ("tenant", "stays")) == 2


def test_the_seed_changes_where_names_hash_to_and_not_what_is_found() -> None:
    for seed in (0, 1, 2**64 - 1):
        allocator = PagedAllocator(8, 2, seed=seed)
        allocator.allocate("a", [1, 2, 3, 4, 5])
        allocator.commit("a")
        assert allocator.cached_prefix([1, 2, 3, 4, 9]) == 4
        assert allocator.cached_prefix([1, 2, 4, 3, 9]) == 2


def test_an_allocator_alone_does_not_import_torch() -> None:
    script = "from kvproof_impls.paged import PagedAllocator as P; import sys; P(4, 4).allocate('a', [1]); "
    script += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0


def test_tokens_of_any_memory_run_the_code_that_is_compiled_already() -> None:
    """Numba compiles anew, for seconds, for what it takes to be another type: read-only memory, or unaligned."""
    tokens, odd = np.arange(4, dtype=np.int32), np.frombuffer(bytes(17), np.int32, count=4, offset=1)
    read_only = tokens.copy()
    read_only.flags.writeable = False
    allocator = PagedAllocator(64, 2)
    for seq, given in enumerate((tokens, read_only, odd, [0, 1, 2, 3], tokens[::-1], tokens.astype(np.int64))):
        allocator.allocate(seq, given)
        allocator.append(seq, given)
        allocator.append_step([seq], given[:1])
        allocator.cached_prefix(given)
    for entry in (entries.allocate, entries.append, entries.append_step, entries.find):
        assert len(entry.signatures) == 1


def test_keys_that_are_only_asked_for_are_forgotten_too() -> None:
    allocator = PagedAllocator(4, 1)
    for visitor in range(3 * MANY):
        allocator.cached_prefix([5, 6], ("tenant", visitor))
    assert len(allocator._fields._numbers) <= MANY + 2


def test_when_all_numbers_of_keys_are_spent_the_cache_begins_anew_and_no_two_keys_share() -> None:
    allocator = PagedAllocator(16, 2)
    for seq, tenant in (("live", "old"), ("away", "older")):
        allocator.allocate(seq, [1, 2, 3], (tenant,))
        allocator.commit(seq)
    allocator.swap_out("away")
    allocator._fields._last = SPENT + 1
    for tenant in ("new", "newer"):
        assert allocator.allocate(tenant, [1, 2, 3], (tenant,)) == 0
    allocator.swap_in("away")
    for seq in ("live", "away", "new"):
        allocator.commit(seq)
    cached = [allocator.cached_prefix([1, 2, 3], (tenant,)) for tenant in ("old", "older", "new", "newer")]
    assert cached == [0, 0, 2, 0]


def test_many_images_in_a_long_prompt_are_looked_at_once_each() -> None:
    class Items(tuple):
        looks = 0

        def __iter__(self):
            Items.looks += 1
            return super().__iter__()

    items = Items((at, 8, "image") for at in range(0, 100_000, 1_000))
    numbers = Fields(8).of_blocks(items, 100_000, 16)
    assert np.count_nonzero(numbers) == len(items)
    assert Items.looks == 1
