"""What one launch tells the compiled code."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """Addresses, strides in bytes, sizes and options of one launch."""

    key: int
    key_block: int
    key_token: int
    key_head: int
    value: int
    value_block: int
    value_token: int
    value_head: int
    table: int
    """int32, rows ``table_row`` bytes apart, entries ``table_entry``."""
    table_row: int
    table_entry: int
    element_bytes: int
    """Of the pools."""
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
