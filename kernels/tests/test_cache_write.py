"""Cache write: rows land in their slots bit for bit, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from kvproof_kernels.cache_write import write_cache

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def random_bits(shape, dtype, seed=0):
    """Every bit pattern, NaN payloads and subnormals included."""
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    info = torch.iinfo(integer)
    random = torch.Generator().manual_seed(seed)
    return torch.randint(info.min, info.max, shape, generator=random, dtype=integer).view(dtype)


def bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def scattered(pool, rows, slots):
    """What the pool must be: one row after the other."""
    want = pool.clone()
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0:
            want[slot // pool.shape[1], slot % pool.shape[1]] = row
    return want


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (80, 80), (192, 128), (256, 256), (576, 512)])
def test_rows_land_in_their_slots_and_nowhere_else(dtype, head_dim, value_dim):
    key_pool, value_pool = (random_bits((7, 3, 2, dim), dtype) for dim in (head_dim, value_dim))
    key, value = random_bits((5, 2, head_dim), dtype, 1), random_bits((5, 2, value_dim), dtype, 2)
    slots = [20, 0, 4, 11, 12]
    want_key, want_value = scattered(key_pool, key, slots), scattered(value_pool, value, slots)
    write_cache(key, value, key_pool, value_pool, torch.tensor(slots))
    assert torch.equal(bits(key_pool), bits(want_key))
    assert torch.equal(bits(value_pool), bits(want_value))


def test_without_values_the_keys_alone_are_written():
    pool, key = random_bits((7, 3, 1, 576), torch.bfloat16), random_bits((5, 1, 576), torch.bfloat16, 1)
    slots = [20, -1, 4, 11, 12]
    want = scattered(pool, key, slots)
    write_cache(key, None, pool, None, torch.tensor(slots))
    assert torch.equal(bits(pool), bits(want))


@pytest.mark.parametrize("block_size", [1, 3, 16, 256, 300])
def test_minus_one_goes_nowhere_at_any_block_size(block_size):
    guarded = [torch.zeros(5, block_size, 1, 64, dtype=torch.float16) for _ in range(2)]
    pools = [stored[1:4] for stored in guarded]
    key = torch.randn(4, 1, 64).half()
    slots = [-1, 3 * block_size - 1, -1, 0]
    want = scattered(pools[0], key, slots)
    write_cache(key, -key, *pools, torch.tensor(slots))
    assert torch.equal(pools[0], want)
    assert torch.equal(pools[1], -want)
    assert not any(stored[0].any() or stored[4].any() for stored in guarded)


def test_rows_may_be_slices_of_a_fused_qkv_and_pools_may_be_hnd():
    fused = torch.randn(6, 4 + 2 + 2, 64)
    key, value = fused[:, 4:6], fused[:, 6:8]
    pools = [torch.zeros(4, 2, 16, 64).transpose(1, 2) for _ in range(2)]
    slots = [63, 2, 17, -1, 40, 5]
    want = scattered(pools[0], key, slots), scattered(pools[1], value, slots)
    write_cache(key, value, *pools, torch.tensor(slots))
    assert torch.equal(pools[0], want[0])
    assert torch.equal(pools[1], want[1])


def test_more_tokens_than_a_tile():
    key = torch.randn(300, 1, 64).half()
    pools = [torch.zeros(20, 16, 1, 64, dtype=torch.float16) for _ in range(2)]
    slots = torch.randperm(320)[:300]
    write_cache(key, key, *pools, slots)
    assert torch.equal(pools[0].view(320, 1, 64)[slots], key)
    assert torch.count_nonzero(pools[1].view(320, 64).abs().sum(1)) == 300


def test_heads_of_a_row_may_lie_apart():
    key, value = torch.randn(5, 2, 112)[..., :64], torch.randn(5, 2, 160)[..., 16:80]
    pools = [torch.zeros(3, 4, 2, 64) for _ in range(2)]
    slots = [11, 0, -1, 4, 6]
    want = scattered(pools[0], key, slots), scattered(pools[1], value, slots)
    write_cache(key, value, *pools, torch.tensor(slots))
    assert torch.equal(pools[0], want[0])
    assert torch.equal(pools[1], want[1])


def test_rows_beyond_2_to_the_31_elements_are_read():
    key = torch.empty(3, 2**30 + 16, dtype=torch.int8)[:, None, :64]
    key[:] = torch.arange(3)[:, None, None]
    pool = torch.zeros(2, 4, 1, 64, dtype=torch.int8)
    write_cache(key, None, pool, None, torch.tensor([7, 0, 5]))
    assert torch.equal(pool.view(8, 64)[[7, 0, 5]], key[:, 0])


def test_pools_may_lie_in_one_tensor_in_turn_with_room_between_blocks():
    stored = random_bits((5, 2, 16 + 3, 2, 64), torch.float16)
    pools = [stored[:, i, :16] for i in range(2)]
    rows = [random_bits((4, 2, 64), torch.float16, seed) for seed in (1, 2)]
    slots = [79, 0, -1, 33]
    want = stored.clone()
    for i in range(2):
        want[:, i, :16] = scattered(pools[i], rows[i], slots)
    write_cache(*rows, *pools, torch.tensor(slots))
    assert torch.equal(bits(stored), bits(want))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([0, 12, 3], r"slot_mapping \[3\]: token 1 goes to slot 12, which is neither -1 nor in range\(12\)"),
        ([0, 3, -2], r"slot_mapping \[3\]: token 2 goes to slot -2"),
        ([4, -1, 4], r"slot_mapping \[3\]: several tokens go to slot 4"),
    ],
)
def test_a_wrong_slot_is_refused_where_validation_is_asked_for(slots, message):
    pools = [torch.zeros(3, 4, 1, 64) for _ in range(2)]
    with pytest.raises(ValueError, match=message):
        write_cache(torch.ones(3, 1, 64), torch.ones(3, 1, 64), *pools, torch.tensor(slots), validate=True)
    assert not pools[0].any()
    write_cache(torch.ones(3, 1, 64), torch.ones(3, 1, 64), *pools, torch.tensor([-1, 11, -1]), validate=True)
    assert pools[0].count_nonzero() == 64


def test_no_tokens_is_no_work():
    pools = [torch.ones(2, 4, 1, 64) for _ in range(2)]
    write_cache(torch.empty(0, 1, 64), torch.empty(0, 1, 64), *pools, torch.empty(0, dtype=torch.int64))
    assert torch.all(pools[0] == 1)


def test_slots_beyond_2_to_the_31_elements_are_reached():
    num_blocks = 2**31 // (16 * 256) + 2
    pools = [torch.empty(num_blocks, 16, 1, 256, dtype=torch.float16) for _ in range(2)]
    key = torch.randn(1, 1, 256).half()
    write_cache(key, -key, *pools, torch.tensor([num_blocks * 16 - 1]))
    assert torch.equal(pools[0][-1, 15], key[0])
    assert torch.equal(pools[1][-1, 15], -key[0])


def test_values_do_not_overwrite_the_keys_of_one_pool():
    pool, rows = torch.zeros(4, 16, 2, 64), torch.ones(2, 3, 2, 64)
    with pytest.raises(ValueError, match=r"key_pool and value_pool begin in the same place; .* without values"):
        write_cache(*rows, pool, pool, torch.tensor([0, 1, 2]))
