"""What one launch tells the compiled code."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Pool(NamedTuple):
    """Where K or V of block 0, token 0, head 0 stands, and how many bytes further the next of each of them."""

    address: int
    block: int
    token: int
    head: int


def in_bytes(pool: Tensor) -> Pool:
    """Of a tensor [num_blocks, block_size, num_kv_heads, dim]."""
    return Pool(pool.data_ptr(), *(pool.element_size() * stride for stride in pool.stride()[:3]))


class Problem(NamedTuple):
    """Addresses, strides in bytes, sizes and options of one launch."""

    key: Pool
    value: Pool
    table: int
    """int32, rows ``table_row`` bytes apart, entries ``table_entry``."""
    table_row: int
    table_entry: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    group_size: int
    head_dim: int
    value_dim: int
    causal: bool
    window: int
    """Visible keys, or 0 for all."""
    scale: float
    softcap: float
    """0: none."""
    """float32, like the other numbers here."""
    value_scale: float
    has_slopes: bool
    has_sinks: bool
