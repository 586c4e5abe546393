"""A batch as SGLang's kernels take it: pools of token slots, and the slot of every token in place of a block table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, PagedBatch


def slots_of(batch: PagedBatch, block_size: int, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """[number of tokens] int64: slots of the positions from, and up to, that ``ranges`` names for each sequence."""
    device = batch.block_tables.device
    starts, ends = torch.tensor(ranges, dtype=torch.int64).reshape(-1, 2).unbind(1)
    counts = ends - starts
    row = torch.arange(len(ranges)).repeat_interleave(counts)
    position = torch.arange(len(row)) - (counts.cumsum(0) - counts - starts)[row]
    row, position = row.to(device), position.to(device)
    return batch.block_tables[row, position // block_size].to(torch.int64) * block_size + position % block_size


def tokens_of(pool: Tensor) -> Tensor:
    """A pool [num_blocks, block_size, heads, dim] as the same memory [slots, heads, dim].

    Raises:
        ValueError: its blocks do not follow one another, or the numbers of a head.
    """
    num_blocks, block_size, *shape = pool.shape
    block, token, head, number = pool.stride()
    if number != 1 or block != block_size * token:
        raise ValueError(f"a pool with strides {pool.stride()} is no row of token slots, packed inside a head")
    return pool.as_strided((num_blocks * block_size, *shape), (token, head, number))


def packed(query: Tensor) -> Tensor:
    """The kernels take the stride of a token and of a head, and no third."""
    return query if query.stride(-1) == 1 else query.contiguous()


def room_for(query: Tensor, spec: AttentionSpec) -> Tensor:
    return query.new_empty(*query.shape[:2], spec.value_dim_value)


def model_options(spec: AttentionSpec, device: torch.device) -> dict[str, Any]:
    sinks = None if spec.sinks is None else torch.tensor(spec.sinks, dtype=torch.float32, device=device)
    return {"logit_cap": spec.softcap or 0.0, "sinks": sinks, "page_size": spec.block_size}
