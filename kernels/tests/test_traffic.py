"""Bytes of a launch, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvproof_kernels.traffic import Shape, Traffic, compulsory, num_blocks, planned, visible
from kvproof_kernels.work import plan_work

GQA = Shape(32, 8, 128, 128, 16, 2, 2)
"""32 query heads on 8 key heads of 128: a token has 2 · 8 · 128 · 2 = 4,096 bytes of K and V."""


def test_decode_moves_each_token_once_a_key_head():
    moved = compulsory(GQA, [100, 17], [1, 1])
    assert moved == Traffic(
        keys_and_values=117 * 4096,
        query=2 * 32 * 128 * 2,
        output=2 * 32 * 128 * 2,
        block_table=4 * (7 + 2),
    )
    assert moved.total == 479_232 + 16_384 + 16_384 + 36


def test_block_size_changes_the_table_alone():
    one, other = (compulsory(replace(GQA, block_size=size), [1000], [1]) for size in (1, 256))
    assert (one.block_table, other.block_table) == (4000, 16)
    assert replace(one, block_table=0) == replace(other, block_table=0)


def test_prefill_moves_each_token_once_as_well():
    assert compulsory(GQA, [1000], [1000]).keys_and_values == 1000 * 4096
    assert compulsory(GQA, [1000], [1000]).query == 1000 * 32 * 128 * 2


@pytest.mark.parametrize(
    ("context_len", "query_len", "window", "span"),
    [
        (100, 1, None, (0, 100)),
        (100, 1, 16, (84, 100)),  # its own position and 15 before
        (100, 4, 16, (81, 100)),  # the first row stands at 96
        (10, 1, 16, (0, 10)),
        (10, 10, 1, (0, 10)),
        (10, 12, None, (0, 10)),  # rows before position 0 see nothing
        (10, 0, None, (0, 0)),
        (0, 1, None, (0, 0)),
    ],
)
def test_a_window_hides_what_no_row_sees(context_len, query_len, window, span):
    assert visible(context_len, query_len, window) == span


def test_a_window_that_starts_inside_a_block_needs_its_entry():
    moved = compulsory(GQA, [100], [1], window=16)
    assert moved.keys_and_values == 16 * 4096
    assert moved.block_table == 4 * 2  # tokens 84 to 99: blocks 5 and 6


@pytest.mark.parametrize(
    ("start", "end", "blocks"), [(0, 16, 1), (0, 17, 2), (15, 17, 2), (16, 16, 0), (5, 3, 0), (31, 33, 2)]
)
def test_blocks_of_a_span(start, end, blocks):
    assert num_blocks(start, end, 16) == blocks


def test_a_common_prefix_counts_once():
    assert compulsory(GQA, [100, 80, 90], [1, 1, 1], common_prefix=64).keys_and_values == (64 + 36 + 16 + 26) * 4096
    assert compulsory(GQA, [100], [1], common_prefix=64).keys_and_values == 100 * 4096
    assert compulsory(GQA, [100, 80], [1, 1], window=16, common_prefix=64).keys_and_values == 32 * 4096


def test_latent_attention_stores_a_token_once():
    mla = Shape(128, 1, 576, 512, 64, 2, 2, shared_kv=True)
    moved = compulsory(mla, [1000], [1])
    assert moved.keys_and_values == 1000 * 576 * 2
    assert moved.output == 128 * 512 * 2
    assert moved.query == 128 * 576 * 2


def test_scales_a_token_are_moved_with_their_rows():
    moved = compulsory(replace(GQA, kv_element_bytes=1, token_scales=True), [100], [1])
    assert moved.keys_and_values == 100 * 2048
    assert moved.scales == 100 * 8 * 2 * 4


def test_the_lse_is_output():
    assert compulsory(replace(GQA, return_lse=True), [100], [3]).output == 3 * 32 * (128 * 2 + 4)


def test_a_plan_of_one_item_a_sequence_moves_what_must_be_moved():
    asked = planned(GQA, [(0, 0, 1, 0, 100, -1), (1, 1, 1, 0, 17, -1)], [0, 0, 0], block_m=16)
    must = compulsory(GQA, [100, 17], [1, 1])
    assert replace(asked, block_table=0, work_items=0) == replace(must, block_table=0)
    assert asked.block_table == 8 * must.block_table  # each key head's program walks the table
    assert asked.work_items == 2 * 8 * (6 + 1) * 4  # an item and the position of its row


def test_two_tiles_of_rows_read_the_same_tokens_twice():
    asked = planned(GQA, [(0, 0, 16, 0, 16, -1), (0, 16, 16, 0, 32, -1)], [0] * 33, block_m=64)
    assert asked.keys_and_values == (16 + 32) * 4096


def test_a_group_that_fills_several_tiles_reads_the_same_tokens_for_each():
    mla = Shape(128, 1, 576, 512, 64, 2, 2, shared_kv=True)
    asked = planned(mla, [(0, 0, 1, 0, 1000, -1)], [0, 0], block_m=16)
    assert asked.keys_and_values == 8 * 1000 * 576 * 2
    assert asked.query == 128 * 576 * 2


def test_a_split_writes_partial_results_that_are_read_to_be_merged():
    asked = planned(GQA, [(0, 0, 1, 0, 64, 0), (0, 0, 1, 64, 100, 1)], [0, 2], block_m=16)
    assert asked.keys_and_values == 100 * 4096
    assert asked.query == 2 * 32 * 128 * 2
    assert asked.partials_written == asked.partials_read == 2 * 32 * (128 + 1) * 4
    assert asked.output == 32 * 128 * 2
    assert asked.work_items == 2 * 8 * (6 + 2) * 4 + 32 * 2 * 4


def test_rows_without_partial_results_are_not_merged():
    asked = planned(GQA, [], [0, 2, 2, 5], block_m=16)
    assert asked.partials_read == 5 * 32 * (128 + 1) * 4
    assert asked.output == 2 * 32 * 128 * 2
    assert planned(GQA, [], [0, 0, 0], block_m=16) == Traffic()


def test_nothing_to_do_moves_nothing():
    assert compulsory(GQA, [], [], common_prefix=64).total == 0
    assert planned(GQA, [], [0], block_m=16).total == 0
    assert planned(GQA, [(0, 0, 0, 0, 64, -1)], [0], block_m=16).total == 0  # room for a later plan


def test_an_item_without_tokens_still_writes_its_result():
    asked = planned(GQA, [(0, 0, 1, 0, 0, -1)], [0, 0], block_m=16)
    assert (asked.keys_and_values, asked.block_table, asked.output) == (0, 0, 32 * 128 * 2)


@pytest.mark.parametrize("contexts", [[100, 17], [4000, 1, 0], [300] * 70, [40_000]])
def test_a_real_plan_of_decode_reads_each_token_once(contexts):
    work = plan_work(contexts, [1] * len(contexts), rows_per_tile=4, step=64)
    asked = planned(GQA, work.items.tolist(), work.partial_start.tolist(), block_m=16)
    must = compulsory(GQA, contexts, [1] * len(contexts))
    assert asked.keys_and_values == must.keys_and_values
    assert asked.output == len(contexts) * 32 * 128 * 2
    assert asked.partials_read == asked.partials_written == work.num_partials * 32 * (128 + 1) * 4


def test_a_real_plan_reads_a_common_prefix_once():
    work = plan_work([1000] * 4, [1] * 4, rows_per_tile=4, step=64, common_prefix_len=512)
    asked = planned(GQA, work.items.tolist(), work.partial_start.tolist(), block_m=16)
    must = compulsory(GQA, [1000] * 4, [1] * 4, common_prefix=512)
    assert asked.keys_and_values == must.keys_and_values == (512 + 4 * 488) * 4096
