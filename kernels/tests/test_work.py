"""Work items cover what each row sees, once, whatever the lengths, and fit into the room that they are given."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvproof_kernels.work import MIN_SPLIT, TARGET_ITEMS, plan_work

lengths = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 40)), max_size=12)


def seen(context_lens, query_lens, window):
    """(start, end) of what each query row sees."""
    found = []
    for context_len, query_len in zip(context_lens, query_lens, strict=True):
        for position in range(context_len - query_len, context_len):
            end = max(0, position + 1)
            found.append((0 if window is None else max(0, end - window), end))
    return found


def pieces(work):
    """For each query row the (start, end, partial) of its items, in order."""
    found = [[] for _ in range(len(work.positions))]
    for _, first_row, num_rows, start, end, partial in work.items.tolist():
        for row in range(first_row, first_row + num_rows):
            found[row].append((start, end, partial))
    return [sorted(row) for row in found]


@given(lengths, st.integers(1, 20), st.sampled_from([None, 1, 7, 300]), st.integers(0, 600))
def test_the_items_of_a_row_cover_what_it_sees_without_overlap(batch, rows_per_tile, window, shared):
    context_lens, query_lens = ([pair[i] for pair in batch] for i in (0, 1))
    shared = min([shared, *context_lens])
    work = plan_work(
        context_lens, query_lens, rows_per_tile=rows_per_tile, step=16, window=window, common_prefix_len=shared
    )
    for (start, end), row in zip(seen(context_lens, query_lens, window), pieces(work), strict=True):
        assert all(a[1] == b[0] for a, b in pairwise(row))
        assert row[0][0] <= start
        assert row[-1][1] >= end


@given(lengths, st.integers(1, 20), st.integers(0, 600))
def test_the_partial_results_of_a_row_have_places_of_their_own(batch, rows_per_tile, shared):
    context_lens, query_lens = ([pair[i] for pair in batch] for i in (0, 1))
    shared = min([shared, *context_lens])
    work = plan_work(context_lens, query_lens, rows_per_tile=rows_per_tile, step=16, common_prefix_len=shared)
    counts = np.diff(work.partial_start.numpy())
    for row, count in zip(pieces(work), counts, strict=True):
        places = [partial for _, _, partial in row]
        assert places == ([-1] if count == 0 else list(range(count)))
    assert work.num_partials == counts.sum()


@given(lengths, st.integers(1, 20))
def test_splits_add_a_bounded_number_of_items(batch, rows_per_tile):
    context_lens, query_lens = ([pair[i] for pair in batch] for i in (0, 1))
    work = plan_work(context_lens, query_lens, rows_per_tile=rows_per_tile, step=16)
    assert len(work.items) <= TARGET_ITEMS + sum(-(-query_len // rows_per_tile) for query_len in query_lens)


@given(lengths, st.integers(1, 20), st.integers(0, 600))
def test_a_plan_fits_into_the_room_that_another_left(batch, rows_per_tile, shared):
    context_lens, query_lens = ([pair[i] for pair in batch] for i in (0, 1))
    shared = min([shared, *context_lens])
    num_tiles = sum(-(-query_len // rows_per_tile) for query_len in query_lens)
    work = plan_work(
        context_lens, query_lens, rows_per_tile=rows_per_tile, step=16, common_prefix_len=shared,
        max_items=num_tiles + 3, max_partials=10,
    )  # fmt: skip
    assert len(work.items) <= num_tiles + 3
    assert work.num_partials <= 10


def test_more_rows_than_there_is_room_for_are_refused():
    with pytest.raises(ValueError, match="5 tiles of query rows; the earlier launch has room for 4"):
        plan_work([9] * 5, [1] * 5, rows_per_tile=4, step=16, max_items=4)


def test_a_short_context_is_not_split_and_a_long_one_is():
    assert len(plan_work([MIN_SPLIT], [1], rows_per_tile=4, step=64).items) == 1
    assert len(plan_work([MIN_SPLIT + 1], [1], rows_per_tile=4, step=64).items) == 2
    assert len(plan_work([2**17], [1], rows_per_tile=4, step=64).items) == TARGET_ITEMS


def test_in_a_ragged_batch_the_long_context_is_split_and_comes_first():
    work = plan_work([100] * 63 + [100_000], [1] * 64, rows_per_tile=4, step=64)
    sizes = (work.items[:, 4] - work.items[:, 3]).tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sequence == 63 for sequence in work.items[:, 0].tolist()) > 100
    assert max(sizes) < 1000


def test_what_lies_behind_a_window_is_no_work():
    work = plan_work([100_000], [1], rows_per_tile=4, step=64, window=128)
    assert work.items.tolist() == [[0, 0, 1, 99_872, 100_000, -1]]


def test_a_common_prefix_is_read_once_for_all_rows():
    work = plan_work([1000, 1010], [1, 1], rows_per_tile=4, step=64, common_prefix_len=960)
    prefix = [item for item in work.items.tolist() if item[3] < 960]
    assert sum(end - start for _, _, _, start, end, _ in prefix) == 960
    assert all(num_rows == 2 for _, _, num_rows, _, _, _ in prefix)


def test_a_prefix_under_a_window_is_read_by_each_row():
    assert plan_work([1000, 1010], [1, 1], rows_per_tile=4, step=64, common_prefix_len=960, window=9).num_partials == 0


def test_lengths_that_do_not_pair_up_are_refused():
    with pytest.raises(ValueError, match=r"context_lens \[3, 4\] and query_lens \[1\] must pair up"):
        plan_work([3, 4], [1], rows_per_tile=4, step=16)


def test_the_tensors_are_what_the_kernel_reads():
    work = plan_work([30, 2], [2, 3], rows_per_tile=2, step=16)
    assert work.positions.tolist() == [28, 29, -1, 0, 1]
    assert {work.items.dtype, work.positions.dtype, work.partial_start.dtype} == {torch.int32}
