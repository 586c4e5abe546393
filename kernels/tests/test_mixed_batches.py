"""Whole prompts, chunks, drafts and decode rows in one launch, against dense float64 attention."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kvproof_kernels.tiles import tile_for

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def tiled(case, block_m: int, block_n: int):
    return replace(tile_for("many", case.geometry.form, "interpreter"), block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 192, 256])
def test_every_head_dim_and_dtype(paged, head_dim, dtype):
    case = paged.draw([21, 40], [21, 5], head_dim=head_dim, dtype=dtype)
    paged.assert_attends(case, *case.run())


@pytest.mark.parametrize("group_size", [1, 2, 3, 5, 7, 8, 17])
@pytest.mark.parametrize("block_m", [16, 128])
def test_every_group_size(paged, group_size, block_m):
    case = paged.draw([19, 30], [19, 3], group_size=group_size, num_kv_heads=1)
    paged.assert_attends(case, *case.run(configuration=tiled(case, block_m, 32)))


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
@pytest.mark.parametrize("block_n", [16, 128])
def test_lengths_around_block_and_tile(paged, block_size, block_n):
    lengths = sorted({1, block_size - 1, block_size, block_size + 1, block_n - 1, block_n, block_n + 1} - {0})
    case = paged.draw(lengths, [min(length, 5) for length in lengths], num_kv_heads=1, block_size=block_size)
    paged.assert_attends(case, *case.run(configuration=tiled(case, 16, block_n)))


def test_whole_prompts_chunks_and_decode_rows_share_a_launch(paged):
    case = paged.draw([33, 50, 7, 1, 130], [33, 17, 1, 1, 64])
    paged.assert_attends(case, *case.run())


def test_rows_before_position_zero_give_zero_and_minus_infinity(paged):
    case = paged.draw([2, 0, 9], [5, 3, 9])
    out, lse = case.run()
    assert torch.all(lse[[0, 1, 2, 5, 6, 7]] == -math.inf)
    paged.assert_attends(case, out, lse)


def test_sequences_without_query_rows_are_passed_over(paged):
    case = paged.draw([12, 20, 5], [4, 0, 5])
    paged.assert_attends(case, *case.run())


@pytest.mark.parametrize("padding_id", [-1, 2**30])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e4])
def test_bytes_and_ids_that_nobody_owns_change_no_bit(paged, padding_id, poison):
    clean = paged.draw([3, 20, 33], [3, 1, 20], poison=0.0, padding_id=0).run()
    dirty = paged.draw([3, 20, 33], [3, 1, 20], poison=poison, padding_id=padding_id).run()
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


def test_a_key_reaches_no_row_before_it(paged):
    case = paged.draw([20], [20], num_kv_heads=1)
    configuration = tiled(case, 16, 16)
    out, _ = case.run(configuration=configuration)
    case.key_pool[case.block_tables[0, 1], 3] = math.nan  # position 19, in the tile of rows 16 to 19
    poisoned, _ = case.run(configuration=configuration)
    assert torch.equal(poisoned[:19], out[:19])
    assert poisoned[19].isnan().all()


def test_the_default_dtype_of_the_process_reaches_no_plan(paged):
    """Engines set it to the model's while they build one."""
    case = paged.draw([600, 3])
    geometry = replace(case.geometry, sinks=(0.3, -1.1, 2.7, 0.123), alibi_slopes=(0.3, 0.1, 0.07, 0.01))
    want = case.run(geometry=geometry)
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = case.run(geometry=geometry)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_hnd_pools_and_value_dim(paged):
    case = paged.draw([40, 9], [12, 9], order="HND", head_dim=80, value_dim=128)
    paged.assert_attends(case, *case.run())


@pytest.mark.parametrize("group_size", [1, 4, 7])
@pytest.mark.parametrize("draft", [2, 3, 5, 8])
def test_drafts_of_a_few_tokens(paged, draft, group_size):
    case = paged.draw([16, 33, draft], [draft, draft, draft], group_size=group_size)
    paged.assert_attends(case, *case.run())


def test_a_draft_takes_no_more_tiles_than_a_decode_row(paged):
    draft, decode = paged.draw([300, 40], [3, 3], group_size=4), paged.draw([300, 40], group_size=4)
    assert draft.plan().work.items.shape == decode.plan().work.items.shape


def test_nothing_to_do_is_no_work(paged):
    out, lse = paged.draw([], []).run()
    assert out.shape == (0, 4, 64)
    assert lse.shape == (0, 4)
