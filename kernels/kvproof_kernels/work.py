"""Which program does what: work items, cut on the host from nothing but the lengths.

An item is a few query rows against a range of tokens. Decode, a draft of a few tokens, a chunk and a whole prompt
differ in nothing else. A context that is long beside the others is split (flash-decoding, Dao et al. 2023); its rows
then leave partial results, which ``combine.py`` merges. Tokens that all sequences of a batch share are read once for
all their rows (cascade attention, Ye et al. 2024): the rows of such an item go on over the sequences' boundaries.

The cut depends on lengths alone, never on the width of a table, the size of a pool or the number of heads: one shard of
the heads is computed as it is among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

ITEM = ("sequence", "first_row", "num_rows", "start", "end", "partial")
"""Columns of an item: query rows against tokens start..end of the sequence's table. ``partial``: its place among the
partial results of each of its rows, -1 where it gives the result itself."""
TARGET_ITEMS = 128
"""Splits add at most so many items a key head: about one for each processor of a large GPU."""
MIN_SPLIT = 256
"""Tokens below which a split costs more in merging than it gains."""


@dataclass(frozen=True)
class Work:
    """What the programs of one launch do; int32 tensors on the launch's device."""

    items: Tensor
    """[num_items, 6] see ``ITEM``; the longest first. An item of no rows is no work."""
    positions: Tensor
    """[num_tokens] position of each query row in its context; negative where the context is shorter than the query."""
    partial_start: Tensor
    """[num_tokens + 1] row i has the partial results partial_start[i]..partial_start[i + 1], or none and its result."""
    num_partials: int


@dataclass(frozen=True)
class Tiles:
    """The rows that one program takes, and start..end: the tokens that some of them sees."""

    sequence: Ints
    first_row: Ints
    num_rows: Ints
    start: Ints
    end: Ints

    def sizes(self, split_len: int, step: int) -> Ints:
        """Tokens a split: equal parts of at most ``split_len``, rounded up to ``step``."""
        lens = self.end - self.start
        return np.maximum(step, round_up(ceil_div(lens, np.maximum(1, ceil_div(lens, split_len))), step))

    def counts(self, sizes: Ints) -> Ints:
        """Splits of each tile; one also where there is nothing to see, to say so."""
        return np.maximum(1, ceil_div(self.end - self.start, sizes))


def plan_work(
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    rows_per_tile: int,
    step: int,
    window: int | None = None,
    common_prefix_len: int = 0,
    max_items: int | None = None,
    max_partials: int | None = None,
) -> Work:
    """Cut a batch into items, on the CPU.

    Args:
        context_lens: tokens of each sequence, this step's own included.
        query_lens: query rows of each sequence, its last positions.
        rows_per_tile: query rows that one program takes.
        step: splits are multiples of it, but for the last: the tokens of a tile.
        window: visible tokens, the query's own included; None: all.
        common_prefix_len: leading tokens whose blocks are the same in all sequences. Unused with a window, behind which
            they lie, and for a single sequence.
        max_items: what an earlier plan's buffers hold; the cut is made coarser until this one fits.
        max_partials: likewise.

    Raises:
        ValueError: lengths that are negative or do not pair up, or more tiles of rows than ``max_items``.
    """
    contexts, queries = (np.array(list(lens), dtype=np.int64) for lens in (context_lens, query_lens))
    if contexts.shape != queries.shape or (contexts < 0).any() or (queries < 0).any():
        raise ValueError(f"context_lens {list(context_lens)} and query_lens {list(query_lens)} must pair up, from 0")
    positions = row_positions(contexts, queries)
    shared = min(common_prefix_len, int(positions.max(initial=-1)) + 1) if window is None and len(contexts) > 1 else 0
    prefix = prefix_tiles(len(positions) if shared else 0, shared, rows_per_tile)
    tiles = sequence_tiles(contexts, queries, positions, rows_per_tile, shared, window)
    total = int(sum((part.end - part.start).sum() for part in (prefix, tiles)))
    split_len = max(MIN_SPLIT, int(round_up(ceil_div(total, TARGET_ITEMS), step)))
    while True:
        items, starts = cut(prefix, tiles, len(positions), split_len, step)
        if (max_items is None or len(items) <= max_items) and (max_partials is None or starts[-1] <= max_partials):
            break
        if split_len >= max(1, total):
            if shared:
                return plan_work(
                    context_lens, query_lens, rows_per_tile=rows_per_tile, step=step, max_items=max_items,
                    max_partials=max_partials,
                )  # fmt: skip
            raise ValueError(f"{len(items)} tiles of query rows; the earlier launch has room for {max_items}")
        split_len *= 2
    longest_first = np.argsort(items[:, 3] - items[:, 4], kind="stable")
    return Work(int32(items[longest_first]), int32(positions), int32(starts), int(starts[-1]))


def row_positions(contexts: Ints, queries: Ints) -> Ints:
    """[num_tokens] the rows of a sequence are its last positions."""
    return np.repeat(contexts - queries, queries) + index_in_group(queries)


def sequence_tiles(
    contexts: Ints, queries: Ints, positions: Ints, rows_per_tile: int, shared: int, window: int | None
) -> Tiles:
    """Each sequence's rows, tile by tile, against what they see behind the ``shared`` tokens."""
    counts = ceil_div(queries, rows_per_tile)
    sequence = np.repeat(np.arange(len(queries)), counts)
    skipped = index_in_group(counts) * rows_per_tile
    first_row = (np.cumsum(queries) - queries)[sequence] + skipped
    num_rows = np.minimum(rows_per_tile, queries[sequence] - skipped)
    end = np.maximum(shared, positions[first_row + num_rows - 1] + 1)
    start = np.full_like(end, shared)
    if window is not None:
        start = np.clip(positions[first_row] - window + 1, 0, end)
    return Tiles(sequence, first_row, num_rows, start, end)


def prefix_tiles(num_tokens: int, shared: int, rows_per_tile: int) -> Tiles:
    """All rows of the batch, tile by tile, against the ``shared`` tokens as the first sequence's table has them."""
    first_row = np.arange(0, num_tokens, rows_per_tile)
    zeros = np.zeros_like(first_row)
    return Tiles(zeros, first_row, np.minimum(rows_per_tile, num_tokens - first_row), zeros, zeros + shared)


def cut(prefix: Tiles, tiles: Tiles, num_tokens: int, split_len: int, step: int) -> tuple[Ints, Ints]:
    """Items, and where the partial results of each row start; a row with one item and no prefix has none."""
    num_shared = int(prefix.counts(prefix.sizes(split_len, step)).max(initial=0))
    counts = tiles.counts(tiles.sizes(split_len, step))
    per_row = np.repeat(counts, tiles.num_rows) + num_shared  # tiles come in the order of their rows
    starts = np.zeros(num_tokens + 1, np.int64)
    np.cumsum(np.where(per_row > 1, per_row, 0), out=starts[1:])
    first_partial = np.where(counts + num_shared > 1, num_shared, -1)
    parts = [split(prefix, split_len, step, np.zeros(len(prefix.start), np.int64))]
    return np.concatenate([*parts, split(tiles, split_len, step, first_partial)]), starts


def split(tiles: Tiles, split_len: int, step: int, first_partial: Ints) -> Ints:
    """[num_items, 6] the tiles cut along their tokens."""
    sizes = tiles.sizes(split_len, step)
    counts = tiles.counts(sizes)
    tile, index = np.repeat(np.arange(len(counts)), counts), index_in_group(counts)
    start = tiles.start[tile] + index * sizes[tile]
    end = np.minimum(start + sizes[tile], tiles.end[tile])
    partial = np.where(first_partial[tile] < 0, -1, first_partial[tile] + index)
    return np.stack([tiles.sequence[tile], tiles.first_row[tile], tiles.num_rows[tile], start, end, partial], axis=1)


def index_in_group(counts: Ints) -> Ints:
    """0..count for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def int32(numbers: Ints) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32))


def ceil_div(number: Ints | int, divisor: Ints | int) -> Ints:
    return np.asarray(-(-np.asarray(number) // divisor), dtype=np.int64)


def round_up(number: Ints, step: int) -> Ints:
    return ceil_div(number, step) * step
