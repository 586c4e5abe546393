"""What the kernels demand of their tensors, checked once a launch on the host, without reading their contents."""

from __future__ import annotations

import torch
from torch import Tensor

from kvproof_kernels.old_launch import DTYPES, MAX_HEAD_DIM, is_interpreted, strides

HEAD_DIM_STEP = 16
"""Head and value dims are multiples of this: the compiled kernels rely on aligned rows."""
MAX_BLOCK_SIZE = 256


def check_attention(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    out: Tensor,
    lse: Tensor,
    query_start: Tensor | None = None,
) -> None:
    """Shapes, dtypes, devices and strides of one attention launch; see ``paged_decode`` and ``paged_prefill``."""
    check_pools(key_pool, value_pool)
    _check_dims("query", query, 3)
    num_tokens, num_q_heads, head_dim = query.shape
    num_kv_heads, value_dim = key_pool.shape[2], value_pool.shape[3]
    if head_dim != key_pool.shape[3]:
        raise ValueError(f"query {_shape(query)} has head_dim {head_dim}, key_pool {_shape(key_pool)} another")
    if num_q_heads == 0 or num_q_heads % num_kv_heads:
        raise ValueError(
            f"query {_shape(query)} has {num_q_heads} heads, which must be a multiple of the {num_kv_heads} "
            f"key heads of key_pool {_shape(key_pool)}"
        )
    _check_same_dtype("query", query, "key_pool", key_pool)
    num_seqs = num_tokens if query_start is None else query_start.shape[0] - 1
    _check_table(block_tables, context_lens, num_seqs)
    _check_shape("out", out, (num_tokens, num_q_heads, value_dim))
    _check_same_dtype("out", out, "query", query)
    _check_shape("lse", lse, (num_tokens, num_q_heads))
    _check_dtype("lse", lse, torch.float32)
    named = {"key_pool": key_pool, "value_pool": value_pool, "block_tables": block_tables} | (
        {"context_lens": context_lens, "out": out, "lse": lse}
        | ({} if query_start is None else {"query_start": query_start})
    )
    _check_device(query, named)
    check_rows(query=query, key_pool=key_pool, value_pool=value_pool, out=out)
    _check_unit_stride(block_tables=block_tables, lse=lse)


def check_write(key: Tensor, value: Tensor, key_pool: Tensor, value_pool: Tensor, slot_mapping: Tensor) -> None:
    """Shapes, dtypes, devices and strides of one cache write; see ``write_cache``."""
    check_pools(key_pool, value_pool)
    _check_dims("key", key, 3)
    num_tokens = key.shape[0]
    _check_shape("key", key, (num_tokens, *key_pool.shape[2:]))
    _check_shape("value", value, (num_tokens, *value_pool.shape[2:]))
    _check_same_dtype("key", key, "key_pool", key_pool)
    _check_same_dtype("value", value, "value_pool", value_pool)
    _check_shape("slot_mapping", slot_mapping, (num_tokens,))
    _check_dtype("slot_mapping", slot_mapping, torch.int64)
    _check_device(key, {"value": value, "key_pool": key_pool, "slot_mapping": slot_mapping})
    check_rows(key=key, value=value, key_pool=key_pool, value_pool=value_pool)
    _check_unit_stride(slot_mapping=slot_mapping)


def check_query_start(query_start: Tensor, block_tables: Tensor, max_query_len: int) -> None:
    """``query_start`` [num_seqs + 1] int32, and the host's bound of the query rows a sequence."""
    _check_dims("query_start", query_start, 1)
    _check_dims("block_tables", block_tables, 2)
    _check_dtype("query_start", query_start, torch.int32)
    _check_shape("query_start", query_start, (block_tables.shape[0] + 1,))
    _check_unit_stride(query_start=query_start)
    if max_query_len < 0:
        raise ValueError(f"max_query_len must not be negative, got {max_query_len}")


def check_pools(key_pool: Tensor, value_pool: Tensor) -> None:
    """Two pools [num_blocks, block_size, num_kv_heads, head_dim or value_dim] that agree in all but the last size."""
    for name, pool in (("key_pool", key_pool), ("value_pool", value_pool)):
        _check_dims(name, pool, 4)
        if 0 in pool.shape:
            raise ValueError(f"{name} {_shape(pool)} is empty")
        if pool.shape[1] > MAX_BLOCK_SIZE:
            raise ValueError(f"{name} {_shape(pool)} has block_size {pool.shape[1]}; at most {MAX_BLOCK_SIZE}")
        if pool.shape[3] % HEAD_DIM_STEP or pool.shape[3] > MAX_HEAD_DIM:
            raise ValueError(
                f"{name} {_shape(pool)} has head_dim {pool.shape[3]}; it must be a multiple of {HEAD_DIM_STEP}, "
                f"at most {MAX_HEAD_DIM}"
            )
        if pool.dtype not in DTYPES:
            raise TypeError(f"{name} is {pool.dtype}; the kernels take {', '.join(map(str, DTYPES))}")
    if key_pool.shape[:3] != value_pool.shape[:3]:
        raise ValueError(
            f"key_pool {_shape(key_pool)} and value_pool {_shape(value_pool)} must agree in "
            "[num_blocks, block_size, num_kv_heads]"
        )
    _check_same_dtype("value_pool", value_pool, "key_pool", key_pool)
    _check_device(key_pool, {"value_pool": value_pool})


def check_rows(**tensors: Tensor) -> None:
    """Unit last stride; on a GPU also rows that start at multiples of 16 elements, which compiled kernels rely on."""
    _check_unit_stride(**tensors)
    for name, tensor in tensors.items():
        if is_interpreted(tensor.device):
            continue
        odd = [stride for stride in strides(tensor)[:-1] if stride % HEAD_DIM_STEP or stride >= 2**31]
        if odd or tensor.data_ptr() % 16:
            raise ValueError(
                f"{name} {_shape(tensor)} with strides {tuple(tensor.stride())} must start at a multiple of 16 bytes "
                f"and have strides below 2^31 that are multiples of {HEAD_DIM_STEP} elements"
            )


def _check_table(block_tables: Tensor, context_lens: Tensor, num_seqs: int) -> None:
    _check_dims("block_tables", block_tables, 2)
    _check_shape("block_tables", block_tables, (num_seqs, block_tables.shape[1]))
    _check_dtype("block_tables", block_tables, torch.int32)
    _check_shape("context_lens", context_lens, (num_seqs,))
    _check_dtype("context_lens", context_lens, torch.int32)
    _check_unit_stride(context_lens=context_lens)


def _check_dims(name: str, tensor: Tensor, num_dims: int) -> None:
    if tensor.dim() != num_dims:
        raise ValueError(f"{name} {_shape(tensor)} must have {num_dims} dims")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} {_shape(tensor)} must be {list(shape)}")


def _check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{name} {_shape(tensor)} is {tensor.dtype}; it must be {dtype}")


def _check_same_dtype(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.dtype != other.dtype:
        raise TypeError(f"{name} is {tensor.dtype}, {other_name} {other.dtype}; they must be the same")


def _check_device(first: Tensor, others: dict[str, Tensor]) -> None:
    for name, tensor in others.items():
        if tensor.device != first.device:
            raise ValueError(f"{name} {_shape(tensor)} is on {tensor.device}, the other tensors on {first.device}")


def _check_unit_stride(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} {_shape(tensor)} has last stride {tensor.stride(-1)}; it must be 1")


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
