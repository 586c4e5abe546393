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
@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (80, 80), (192, 128), (256, 256)])
def test_rows_land_in_their_slots_and_nowhere_else(dtype, head_dim, value_dim):
    key_pool, value_pool = (random_bits((7, 3, 2, dim), dtype) for dim in (head_dim, value_dim))
    key, value = random_bits((5, 2, head_dim), dtype, 1), random_bits((5, 2, value_dim), dtype, 2)
    slots = [20, 0, 4, 11, 12]
    want_key, want_value = scattered(key_pool, key, slots), scattered(value_pool, value, slots)
    write_cache(key, value, key_pool, value_pool, torch.tensor(slots))
    assert torch.equal(bits(key_pool), bits(want_key))
    assert torch.equal(bits(value_pool), bits(want_value))


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_minus_one_goes_nowhere_at_any_block_size(block_size):
    pools = [torch.zeros(3, block_size, 1, 64, dtype=torch.float16) for _ in range(2)]
    key = torch.randn(4, 1, 64).half()
    slots = [-1, 3 * block_size - 1, -1, 0]
    want = scattered(pools[0], key, slots)
    write_cache(key, -key, *pools, torch.tensor(slots))
    assert torch.equal(pools[0], want)
    assert torch.equal(pools[1], -want)


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
