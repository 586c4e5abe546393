"""What the kernels demand of their tensors, checked on the host; contents are read only where a function says so."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from kvproof_kernels.geometry import HEAD_DIM_STEP, Geometry
from kvproof_kernels.launch import is_interpreted, strides
from kvproof_kernels.tensor_checks import (
    check_device,
    check_dims,
    check_dtype,
    check_same_dtype,
    check_shape,
    check_unit_stride,
    shape_of,
)
from kvproof_kernels.tiles import CODES, DTYPES, MAX_HEAD_DIM, MAX_REST_DIM

SCALE_SHAPES = {"head": (2,), "token": (0, 1, 2)}
"""Dims of the pool that the scales have."""
MAX_CONTEXT_LEN = 2**30
"""Positions are int32, and no window is one of 2^30 tokens."""


def check_tables(
    block_tables: Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    block_size: int,
    common_prefix_blocks: int = 0,
) -> None:
    """One row of the table a sequence, wide enough for its context."""
    check_dims("block_tables", block_tables, 2)
    check_dtype("block_tables", block_tables, torch.int32)
    check_unit_stride(block_tables=block_tables)
    num_seqs, width = block_tables.shape
    if not len(context_lens) == len(query_lens) == num_seqs:
        raise ValueError(
            f"block_tables {shape_of(block_tables)} has {num_seqs} rows, there are {len(context_lens)} context_lens "
            f"and {len(query_lens)} query_lens"
        )
    for name, lens in (("context_lens", context_lens), ("query_lens", query_lens)):
        try:
            list(map(operator.index, lens))
        except TypeError:
            raise TypeError(f"{name} must be integers, got {list(lens)}") from None
        if min(lens, default=0) < 0:
            raise ValueError(f"{name} must not be negative, got {list(lens)}")
    longest = max(context_lens, default=0)
    if longest > width * block_size:
        raise ValueError(
            f"context_lens: {longest} tokens of sequence {list(context_lens).index(longest)} need "
            f"{-(-longest // block_size)} blocks of {block_size}; block_tables {shape_of(block_tables)} has {width}"
        )
    if longest > MAX_CONTEXT_LEN:
        raise ValueError(
            f"context_lens: {longest} tokens of sequence {list(context_lens).index(longest)}; at most {MAX_CONTEXT_LEN}"
        )
    if not 0 <= common_prefix_blocks <= width:
        raise ValueError(f"common_prefix_blocks {common_prefix_blocks}: block_tables has {width} columns")


def check_launch(
    geometry: Geometry,
    num_tokens: int,
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    out: Tensor,
    block_tables: Tensor,
) -> None:
    """Shapes, dtypes, devices and strides of one attention launch; see ``plan.PagedAttention``."""
    check_pools(key_pool, value_pool)
    check_shape("query", query, (num_tokens, geometry.num_q_heads, geometry.head_dim))
    for name, pool, dim in (
        ("key_pool", key_pool, geometry.head_dim),
        ("value_pool", value_pool, geometry.value_dim),
    ):
        check_shape(name, pool, (pool.shape[0], geometry.block_size, geometry.num_kv_heads, dim))
        check_dtype(name, pool, geometry.kv_dtype)
        check_slots_near(name, pool)
    check_shape("out", out, (num_tokens, geometry.num_q_heads, geometry.value_dim))
    for name, tensor in (("query", query), ("out", out)):
        check_dtype(name, tensor, geometry.dtype)
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise ValueError(f"out {shape_of(out)} with strides {out.stride()} holds several rows in the same place")
    if geometry.mla and (key_pool.data_ptr(), key_pool.stride()) != (value_pool.data_ptr(), value_pool.stride()):
        raise ValueError("value_pool must be the view key_pool[..., :value_dim] with MLA; it is another tensor")
    check_device(query, {"key_pool": key_pool, "value_pool": value_pool, "out": out, "block_tables": block_tables})
    check_rows(query=query, key_pool=key_pool, value_pool=value_pool, out=out)


def check_scales(geometry: Geometry, key_pool: Tensor, key_scale: Tensor | None, value_scale: Tensor | None) -> None:
    """Scales a head [num_kv_heads] or a token [num_blocks, block_size, num_kv_heads], if the geometry has them."""
    for name, scale in (("key_scale", key_scale), ("value_scale", value_scale)):
        if (dims := SCALE_SHAPES.get(geometry.kv_scales)) is None:
            if scale is not None:
                raise ValueError(f"{name} {shape_of(scale)} was given, but one scale serves the whole tensor")
            continue
        if scale is None:
            raise ValueError(f"{name} is missing: there is one scale a {geometry.kv_scales}")
        check_shape(name, scale, tuple(key_pool.shape[dim] for dim in dims))
        check_dtype(name, scale, torch.float32)
        check_device(key_pool, {name: scale})
        check_unit_stride(**{name: scale})
        if geometry.kv_scales == "token":
            check_slots_near(name, scale)
    if key_scale is not None and value_scale is not None and key_scale.stride() != value_scale.stride():
        raise ValueError(
            f"key_scale and value_scale must have the same strides, not {key_scale.stride()}, {value_scale.stride()}"
        )


def check_ids(
    block_tables: Tensor, context_lens: Sequence[int], key_pool: Tensor, common_prefix_blocks: int = 0
) -> None:
    """Every block that will be read lies in the pool, and the common prefix is common. Reads the table."""
    table, num_blocks, block_size = block_tables.cpu(), key_pool.shape[0], key_pool.shape[1]
    for i, context_len in enumerate(context_lens):
        read = table[i, : -(-context_len // block_size)]
        outside = ((read < 0) | (read >= num_blocks)).nonzero().flatten().tolist()
        if outside:
            raise ValueError(
                f"block_tables[{i}, {outside[0]}] is {int(read[outside[0]])}: "
                f"key_pool {shape_of(key_pool)} has the blocks 0 to {num_blocks - 1}"
            )
    common = table[:, :common_prefix_blocks]
    if len(common) and not torch.equal(common, common[:1].expand_as(common)):
        raise ValueError(f"common_prefix_blocks is {common_prefix_blocks}, but the sequences' tables differ there")


def check_partials(
    partial_out: Tensor, partial_lse: Tensor, partial_start: Tensor, sinks: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Shapes, dtypes, devices and strides of one merge; see ``combine.combine``."""
    check_dims("out", out, 3)
    num_tokens, num_q_heads, value_dim = out.shape
    if value_dim > MAX_HEAD_DIM:
        raise ValueError(f"out {shape_of(out)} has value_dim {value_dim}; it must be at most {MAX_HEAD_DIM}")
    check_dims("partial_out", partial_out, 3)
    num_partials = partial_out.shape[0]
    shapes = {"partial_out": (num_partials, num_q_heads, value_dim), "partial_lse": (num_partials, num_q_heads)}
    shapes |= {"partial_start": (num_tokens + 1,), "sinks": (num_q_heads,), "lse": (num_tokens, num_q_heads)}
    given = {"partial_out": partial_out, "partial_lse": partial_lse, "partial_start": partial_start}
    given |= {"sinks": sinks, "lse": lse}
    for name, tensor in given.items():
        check_shape(name, tensor, shapes[name])
        check_dtype(name, tensor, torch.int32 if name == "partial_start" else torch.float32)
    for name in ("partial_out", "partial_lse"):
        if not given[name].is_contiguous():
            raise ValueError(f"{name} {shape_of(given[name])} has strides {given[name].stride()}; it must be packed")
    if out.dtype not in DTYPES:
        raise TypeError(f"out is {out.dtype}; the kernels take {', '.join(map(str, DTYPES))}")
    check_device(out, given)
    check_unit_stride(out=out, **given)


def check_pools(key_pool: Tensor, value_pool: Tensor | None, widest: int = MAX_HEAD_DIM + MAX_REST_DIM) -> None:
    """Pools [num_blocks, block_size, num_kv_heads, head_dim or value_dim] that agree in all but the last size, which is
    at most ``widest``; ``None``: the keys alone."""
    pools = {"key_pool": key_pool} | ({} if value_pool is None else {"value_pool": value_pool})
    for name, pool in pools.items():
        check_dims(name, pool, 4)
        if 0 in pool.shape:
            raise ValueError(f"{name} {shape_of(pool)} is empty")
        if pool.shape[3] % HEAD_DIM_STEP or pool.shape[3] > widest:
            raise ValueError(
                f"{name} {shape_of(pool)} has head_dim {pool.shape[3]}; it must be a multiple of {HEAD_DIM_STEP}, "
                f"at most {widest}"
            )
        if pool.dtype not in (*DTYPES, *CODES):
            raise TypeError(f"{name} is {pool.dtype}; the kernels take {', '.join(map(str, (*DTYPES, *CODES)))}")
    if value_pool is None:
        return
    if key_pool.shape[:3] != value_pool.shape[:3]:
        raise ValueError(
            f"key_pool {shape_of(key_pool)} and value_pool {shape_of(value_pool)} must agree in "
            "[num_blocks, block_size, num_kv_heads]"
        )
    check_same_dtype("value_pool", value_pool, "key_pool", key_pool)
    check_device(key_pool, {"value_pool": value_pool})


def check_slots_near(name: str, pool: Tensor) -> None:
    """``pool`` [num_blocks, block_size, ...]: within a block, offset times stride is counted in 32 bits."""
    if (pool.shape[1] - 1) * pool.stride(1) >= 2**31:
        raise ValueError(
            f"{name} {shape_of(pool)} with strides {tuple(pool.stride())} must have the slots of a block within 2^31 "
            "elements"
        )


def check_rows(**tensors: Tensor) -> None:
    """Unit last stride; on a GPU also rows that start at multiples of 16 elements, which compiled kernels rely on."""
    check_unit_stride(**tensors)
    for name, tensor in tensors.items():
        if is_interpreted(tensor.device):
            continue
        odd = [stride for stride in strides(tensor)[:-1] if stride % HEAD_DIM_STEP or stride >= 2**31]
        if odd or tensor.data_ptr() % 16:
            raise ValueError(
                f"{name} {shape_of(tensor)} with strides {tuple(tensor.stride())} must start at a multiple of 16 bytes "
                f"and have strides below 2^31 that are multiples of {HEAD_DIM_STEP} elements"
            )
