"""What the CPU kernel demands of its tensors, checked on the host without reading their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kvproof_kernels.model_checks import check_heads, check_options
from kvproof_kernels.tensor_checks import check_dims, check_dtype, check_same_dtype, check_shape, check_unit_stride

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_plan(
    block_tables: Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    heads: tuple[int, ...],
    options: Mapping[str, Any],
) -> None:
    """Heads that go up in groups, a table that can be read, lengths within it. ``heads``: ``model_checks.HEADS``."""
    check_heads(*heads)
    check_options(heads[0], **options)
    check_dims("block_tables", block_tables, 2)
    check_dtype("block_tables", block_tables, torch.int32)
    check_device(block_tables=block_tables)
    if not len(block_tables) == len(context_lens) == len(query_lens):
        raise ValueError(
            f"block_tables {list(block_tables.shape)}, {len(context_lens)} context_lens and {len(query_lens)} "
            "query_lens must be of as many sequences"
        )
    capacity = block_tables.shape[1] * heads[-1]
    for seq, (context_len, query_len) in enumerate(zip(context_lens, query_lens, strict=True)):
        if context_len < 0 or query_len < 0:
            raise ValueError(
                f"sequence {seq}: context_len {context_len} and query_len {query_len} must not be negative"
            )
        if context_len > capacity:
            raise ValueError(
                f"sequence {seq}: context_len {context_len} is beyond block_tables {list(block_tables.shape)} with "
                f"{heads[-1]} tokens a block"
            )


def check_launch(
    query: Tensor, key_pool: Tensor, value_pool: Tensor, out: Tensor, heads: tuple[int, ...], num_tokens: int
) -> None:
    """Shapes, dtypes, devices and strides. ``heads``: ``model_checks.HEADS``."""
    num_q_heads, num_kv_heads, head_dim, value_dim, block_size = heads
    check_shape("query", query, (num_tokens, num_q_heads, head_dim))
    check_shape("out", out, (num_tokens, num_q_heads, value_dim))
    check_dims("key_pool", key_pool, 4)
    check_shape("key_pool", key_pool, (len(key_pool), block_size, num_kv_heads, head_dim))
    check_shape("value_pool", value_pool, (len(key_pool), block_size, num_kv_heads, value_dim))
    for name, tensor in (("query", query), ("key_pool", key_pool)):
        if tensor.dtype not in DTYPES:
            takes = ", ".join(map(str, DTYPES))
            raise TypeError(f"{name} {list(tensor.shape)} is {tensor.dtype}; the kernel takes {takes}")
    check_same_dtype("value_pool", value_pool, "key_pool", key_pool)
    check_same_dtype("out", out, "query", query)
    check_device(query=query, key_pool=key_pool, value_pool=value_pool, out=out)
    check_unit_stride(key_pool=key_pool, value_pool=value_pool)


def check_write(name: str, rows: Tensor, pool: Tensor, slot_mapping: Tensor) -> None:
    """Rows that fit the pool, and a slot for each."""
    check_dims(f"{name}_pool", pool, 4)
    check_dims("slot_mapping", slot_mapping, 1)
    check_dtype("slot_mapping", slot_mapping, torch.int64)
    check_shape(name, rows, (len(slot_mapping), *pool.shape[2:]))
    check_same_dtype(name, rows, f"{name}_pool", pool)
    check_device(**{name: rows, f"{name}_pool": pool, "slot_mapping": slot_mapping})
    check_unit_stride(**{name: rows, f"{name}_pool": pool})


def check_copies(pool: Tensor, copies: Sequence[tuple[int, int]]) -> None:
    """Blocks of the pool, none of them a destination and anything else."""
    check_dims("pool", pool, 4)
    check_device(pool=pool)
    check_unit_stride(pool=pool)
    if outside := [pair for pair in copies if not all(0 <= block < len(pool) for block in pair)]:
        raise ValueError(f"copies {outside}: a block is outside the pool of {len(pool)} blocks")
    sources, destinations = {source for source, _ in copies}, {destination for _, destination in copies}
    if len(destinations) < len(copies) or destinations & sources:
        raise ValueError(f"copies {list(copies)}: a destination is another pair's source or destination")


def check_device(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} {list(tensor.shape)} is on {tensor.device}; this kernel runs on a CPU")
