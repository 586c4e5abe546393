"""Block copy: whole blocks bit for bit, every other block as it was, ambiguous orders refused."""

from __future__ import annotations

import pytest
import torch

from kvproof_kernels.block_copy import copy_blocks


def random_pools(num_blocks=8, block_size=16, head_dim=64, value_dim=64, dtype=torch.float16):
    """Every bit pattern, NaN payloads included."""
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    info = torch.iinfo(integer)
    random = torch.Generator().manual_seed(0)
    return [
        torch.randint(info.min, info.max, (num_blocks, block_size, 2, dim), generator=random, dtype=integer).view(dtype)
        for dim in (head_dim, value_dim)
    ]


def bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (80, 80), (192, 128)])
@pytest.mark.parametrize("block_size", [1, 3, 256])
def test_copies_are_bitwise_and_change_nothing_else(block_size, head_dim, value_dim, dtype):
    pools = random_pools(8, block_size, head_dim, value_dim, dtype)
    copies = [(2, 5), (2, 0), (7, 1)]
    before = [bits(pool).clone() for pool in pools]
    copy_blocks(*pools, copies)
    for pool, want in zip(pools, before, strict=True):
        for source, destination in copies:
            want[destination] = want[source]
        assert torch.equal(bits(pool), want)


def test_hnd_pools_are_copied_through_their_strides():
    pools = [torch.randn(5, 2, 16, 64).transpose(1, 2) for _ in range(2)]
    want = [pool.clone() for pool in pools]
    for pool in want:
        pool[4] = pool[1]
    copy_blocks(*pools, [(1, 4)])
    assert torch.equal(pools[0], want[0])
    assert torch.equal(pools[1], want[1])


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([(0, 1), (1, 2)], r"copy \(0, 1\): block 1 is also a source"),
        ([(1, 2), (0, 1)], r"copy \(0, 1\): block 1 is also a source"),
        ([(0, 3), (1, 3)], r"copy \(0, 3\): block 3 is also a destination of another copy"),
        ([(4, 4)], r"copy \(4, 4\): block 4 is also a source"),
        ([(0, 1), (2, 8)], r"copy \(2, 8\): block 8 is not in range\(8\)"),
        ([(-1, 3)], r"copy \(-1, 3\): block -1 is not in range\(8\)"),
    ],
)
def test_what_is_refused_copies_nothing(copies, message):
    pools = random_pools()
    before = [bits(pool).clone() for pool in pools]
    with pytest.raises(ValueError, match=message):
        copy_blocks(*pools, copies)
    assert torch.equal(bits(pools[0]), before[0])
    assert torch.equal(bits(pools[1]), before[1])


def test_no_copies_is_no_work():
    pools = random_pools()
    before = bits(pools[0]).clone()
    copy_blocks(*pools, [])
    assert torch.equal(bits(pools[0]), before)
