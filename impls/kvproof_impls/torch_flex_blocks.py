"""The block mask of FlexAttention for a paged batch: which pages each block of query rows may see.

Sizes that differ from step to step are marked, so that one compilation serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, PagedBatch

QUERY_BLOCK = 128
"""Query rows that share one row of the block mask; torch's own default."""


@dataclass(frozen=True)
class Blocks:
    """Pages that each block of query rows may see: [num_rows, query_blocks] and [num_rows, query_blocks, pool_blocks].
    Of the full ones every token is seen by every row, and the mask is not asked."""

    counts: Tensor
    pages: Tensor
    full_counts: Tensor
    full_pages: Tensor
    logical: Tensor
    """[num_rows · pool_blocks], padded: where in its sequence a page stands, -1 where it has no place there."""
    pool_blocks: Tensor
    """[1]"""


def padded_places(batch: PagedBatch, query_len: int) -> Tensor:
    """[num_tokens] row of each query token among [num_rows · query_len] padded ones."""
    places = [torch.arange(length) + row * query_len for row, length in enumerate(batch.query_lens_host)]
    return torch.cat(places) if places else torch.empty(0, dtype=torch.int64)


def make_blocks(spec: AttentionSpec, batch: PagedBatch, pool_blocks: int, num_rows: int, query_len: int) -> Blocks:
    """Two rows of the mask at least: one would be a constant of the compilation."""
    query_blocks = max(2, -(-query_len // QUERY_BLOCK))
    shape = (num_rows, query_blocks)
    counts, full_counts = torch.zeros(shape, dtype=torch.int32), torch.zeros(shape, dtype=torch.int32)
    pages, full_pages = (torch.zeros(*shape, pool_blocks, dtype=torch.int32) for _ in range(2))
    logical = torch.full((num_rows, pool_blocks), -1, dtype=torch.int64)
    for row, (context_len, own_len) in enumerate(zip(batch.context_lens_host, batch.query_lens_host, strict=True)):
        table = batch.block_tables[row, : -(-context_len // spec.block_size)]
        logical[row, table.long()] = torch.arange(len(table))
        first = torch.arange(len(table)) * spec.block_size
        for i in range(-(-own_len // QUERY_BLOCK)):
            start = context_len - own_len + i * QUERY_BLOCK
            end = min(start + QUERY_BLOCK, context_len)
            seen, whole = visible(spec, first, start, end, context_len)
            for these, count, to in ((table[seen & ~whole], counts, pages), (table[whole], full_counts, full_pages)):
                count[row, i], to[row, i, : len(these)] = len(these), these
    for tensor in (counts, full_counts, pages, full_pages):
        symbols(tensor, *range(tensor.dim()))
    places = padded_to_power(logical.flatten(), logical.numel())
    return Blocks(counts, pages, full_counts, full_pages, places, torch.tensor([pool_blocks]))


def padded_to_power(values: Tensor, length: int) -> Tensor:
    """``values`` and zeros, to the least power of 16 from 4,096 on that is not below ``length``."""
    power = 4096
    while power < length:
        power *= 16
    return torch.cat([values, values.new_zeros(power - len(values))])


def symbols(tensor: Tensor, *dims: int) -> None:
    """Compile for any size of these dimensions; a size of 1 stays a constant."""
    for dim in dims:
        if tensor.shape[dim] > 1:
            torch._dynamo.mark_dynamic(tensor, dim)


def visible(spec: AttentionSpec, first: Tensor, start: int, end: int, context_len: int) -> tuple[Tensor, Tensor]:
    """Which pages, known by their ``first`` positions, some and all of the queries at positions [start, end) see."""
    last = first + spec.block_size - 1
    if not spec.causal:
        return first < context_len, last < context_len
    seen, whole = first < end, (last <= start) & (last < context_len)
    if spec.window is not None:
        seen, whole = seen & (last > start - spec.window), whole & (first > end - 1 - spec.window)
    return seen, whole & seen
