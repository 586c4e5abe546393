"""What the CPU kernel demands of its tensors, checked on the host without reading their contents."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_plan(
    block_tables: Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    num_q_heads: int,
    num_kv_heads: int,
    block_size: int,
    window: int | None,
) -> None:
    """Lengths within the table, heads that go up in groups, a table that can be read."""
    if num_kv_heads < 1 or num_q_heads < 1 or num_q_heads % num_kv_heads:
        raise ValueError(f"num_q_heads ({num_q_heads}) must be a multiple of num_kv_heads ({num_kv_heads})")
    if window is not None and window < 1:
        raise ValueError(f"window ({window}) must be at least 1")
    if block_tables.dtype != torch.int32:
        raise TypeError(f"block_tables {list(block_tables.shape)} is {block_tables.dtype}; it must be torch.int32")
    if block_tables.dim() != 2 or len(block_tables) != len(context_lens) or len(context_lens) != len(query_lens):
        raise ValueError(
            f"block_tables {list(block_tables.shape)}, {len(context_lens)} context_lens and {len(query_lens)} "
            "query_lens must be of as many sequences"
        )
    check_device(block_tables=block_tables)
    for seq, (context_len, query_len) in enumerate(zip(context_lens, query_lens, strict=True)):
        if context_len < 0 or query_len < 0:
            raise ValueError(
                f"sequence {seq}: context_len {context_len} and query_len {query_len} must not be negative"
            )
        if context_len > block_tables.shape[1] * block_size:
            raise ValueError(
                f"sequence {seq}: context_len {context_len} is beyond block_tables {list(block_tables.shape)} with "
                f"{block_size} tokens a block"
            )


def check_launch(
    query: Tensor, key_pool: Tensor, value_pool: Tensor, out: Tensor, heads: tuple[int, ...], num_tokens: int
) -> None:
    """Shapes, dtypes, devices and strides. ``heads``: num_q_heads, num_kv_heads, head_dim, value_dim, block_size."""
    num_q_heads, num_kv_heads, head_dim, value_dim, block_size = heads
    check_shape("query", query, (num_tokens, num_q_heads, head_dim))
    check_shape("out", out, (num_tokens, num_q_heads, value_dim))
    check_shape("key_pool", key_pool, (len(value_pool), block_size, num_kv_heads, head_dim))
    check_shape("value_pool", value_pool, (len(key_pool), block_size, num_kv_heads, value_dim))
    for name, tensor in (("query", query), ("key_pool", key_pool)):
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} is {tensor.dtype}; the kernel takes {', '.join(map(str, DTYPES))}")
    for name, tensor, other_name, other in (
        ("value_pool", value_pool, "key_pool", key_pool),
        ("out", out, "query", query),
    ):
        if tensor.dtype != other.dtype:
            raise TypeError(f"{name} is {tensor.dtype}, {other_name} {other.dtype}; they must be the same")
    check_device(query=query, key_pool=key_pool, value_pool=value_pool, out=out)
    check_last_stride(key_pool=key_pool, value_pool=value_pool)


def check_write(name: str, rows: Tensor, pool: Tensor, slot_mapping: Tensor) -> None:
    """Rows that fit the pool, and a slot for each."""
    if pool.dim() != 4:
        raise ValueError(f"{name}_pool {list(pool.shape)} must be [num_blocks, block_size, num_kv_heads, dim]")
    if slot_mapping.dim() != 1:
        raise ValueError(f"slot_mapping {list(slot_mapping.shape)} must be [num_tokens]")
    check_shape(name, rows, (len(slot_mapping), *pool.shape[2:]))
    if rows.dtype != pool.dtype:
        raise TypeError(f"{name} is {rows.dtype}, {name}_pool {pool.dtype}; they must be the same")
    if slot_mapping.dtype != torch.int64:
        raise TypeError(f"slot_mapping {list(slot_mapping.shape)} is {slot_mapping.dtype}; it must be torch.int64")
    check_device(**{name: rows, f"{name}_pool": pool, "slot_mapping": slot_mapping})
    check_last_stride(**{name: rows, f"{name}_pool": pool})


def check_copies(pool: Tensor, copies: Sequence[tuple[int, int]]) -> None:
    """Blocks of the pool, none of them a destination and anything else."""
    check_device(pool=pool)
    check_last_stride(pool=pool)
    if outside := [pair for pair in copies if not all(0 <= block < len(pool) for block in pair)]:
        raise ValueError(f"copies {outside}: a block is outside the pool of {len(pool)} blocks")
    sources, destinations = {source for source, _ in copies}, {destination for _, destination in copies}
    if len(destinations) < len(copies) or destinations & sources:
        raise ValueError(f"copies {list(copies)}: a destination is another pair's source or destination")


def check_last_stride(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} {list(tensor.shape)} has last stride {tensor.stride(-1)}; it must be 1")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} {list(tensor.shape)} must be {list(shape)}")


def check_device(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} {list(tensor.shape)} is on {tensor.device}; this kernel runs on a CPU")
