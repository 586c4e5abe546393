"""Paged attention of one query token a sequence, against dense float64 attention."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kvproof_kernels.tiles import tile_for

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 192, 256, 512])
def test_every_head_dim_and_dtype(paged, head_dim, dtype):
    case = paged.draw([1, 37], head_dim=head_dim, value_dim=min(head_dim, 512), dtype=dtype)
    paged.assert_attends(case, *case.run())


@pytest.mark.parametrize("group_size", [1, 2, 3, 5, 7, 8, 16, 17, 40])
def test_every_group_size(paged, group_size):
    case = paged.draw([5, 21], group_size=group_size)
    paged.assert_attends(case, *case.run())


@pytest.mark.parametrize("block_size", [1, 3, 16, 48, 256, 1000])
@pytest.mark.parametrize("block_n", [16, 64, None])
def test_lengths_around_block_and_tile(paged, block_size, block_n):
    tile = block_n or 128
    lengths = {1, block_size - 1, block_size, block_size + 1, tile - 1, tile, tile + 1}
    case = paged.draw(sorted(lengths - {0}), num_kv_heads=1, block_size=block_size)
    chosen = tile_for("few", case.geometry.form, "interpreter")
    configuration = None if block_n is None else replace(chosen, block_n=block_n)
    paged.assert_attends(case, *case.run(configuration=configuration))


def test_a_context_of_nothing_gives_zero_and_minus_infinity(paged):
    case = paged.draw([0, 4, 0])
    out, lse = case.run()
    assert torch.all(out[[0, 2]] == 0)
    assert torch.all(lse[[0, 2]] == -math.inf)
    paged.assert_attends(case, out, lse)


@pytest.mark.parametrize("padding_id", [-1, 2**30, -(2**31)])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e4])
def test_bytes_and_ids_that_nobody_owns_change_no_bit(paged, padding_id, poison):
    clean = paged.draw([3, 20, 33], poison=0.0, padding_id=0).run()
    dirty = paged.draw([3, 20, 33], poison=poison, padding_id=padding_id).run()
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


def test_hnd_pools_give_the_bits_of_nhd_pools(paged):
    nhd, hnd = paged.draw([3, 40]), paged.draw([3, 40], order="HND")
    assert hnd.key_pool.stride() != nhd.key_pool.stride()
    assert torch.equal(hnd.run()[0], nhd.run()[0])


def test_value_dim_may_differ_from_head_dim(paged):
    case = paged.draw([1, 37], head_dim=96, value_dim=48)
    out, lse = case.run()
    assert out.shape == (2, 4, 48)
    paged.assert_attends(case, out, lse)


def test_query_and_out_may_be_slices_of_wider_tensors(paged):
    case = paged.draw([9, 30])
    fused = torch.full((2, 8, 64), math.nan, dtype=torch.float16)
    fused[:, 2:6] = case.query
    wide = torch.full((2, 6, 64), 7.0, dtype=torch.float16)
    case.query = fused[:, 2:6]
    paged.assert_attends(case, *case.plan()(case.query, case.key_pool, case.value_pool, wide[:, 1:5]))
    assert torch.all(wide[:, [0, 5]] == 7.0)


def test_a_batch_of_no_sequences_is_no_work(paged):
    out, lse = paged.draw([]).run()
    assert out.shape == (0, 4, 64)
    assert lse.shape == (0, 4)


def test_equal_inputs_give_equal_bits(paged):
    case = paged.draw([70, 300])
    assert torch.equal(case.run()[0], case.run()[0])


def test_blocks_beyond_2_to_the_31_elements_are_reached(paged):
    """Pools of 4.3 GB of address space, of which only the pages of the last blocks are ever touched."""
    case = paged.draw([20], num_kv_heads=1, head_dim=256, block_size=16)
    num_blocks = 2**31 // (16 * 256) + 2
    far = torch.tensor([[num_blocks - 1, num_blocks - 2]], dtype=torch.int32)
    for name in ("key_pool", "value_pool"):
        near = getattr(case, name)
        pool = torch.empty((num_blocks, 16, 1, 256), dtype=torch.float16)
        pool[far[0].tolist()] = near[case.block_tables[0, :2].tolist()]
        setattr(case, name, pool)
    case.block_tables = far
    paged.assert_attends(case, *case.run())
