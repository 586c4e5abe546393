"""Cache write: put this step's K and V rows into their slots.

Token i goes to slot s = slot_mapping[i], i.e. to offset ``s % block_size`` of block ``s // block_size``; -1 goes
nowhere (the reshape-and-cache kernel of PagedAttention, Kwon et al., SOSP 2023, section 5.1). Rows are moved as bits:
what the model wrote is what attention reads, NaN payloads included. One program moves BLOCK_T tokens of one key head.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.launch import as_bits, configure_copy, launch, strides
from kvproof_kernels.validation import check_write

UNSPECIALIZED = ["slot_mapping", "num_tokens", "block_size"]


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def cache_write_kernel(
    key,  # [num_tokens, num_kv_heads, head_dim]
    value,  # [num_tokens, num_kv_heads, value_dim]
    key_pool,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_pool,  # [num_blocks, block_size, num_kv_heads, value_dim]
    slot_mapping,  # [num_tokens] int64
    stride_key, stride_key_head,
    stride_value, stride_value_head,
    stride_key_block, stride_key_offset, stride_key_pool_head,
    stride_value_block, stride_value_offset, stride_value_pool_head,
    num_tokens,
    block_size,
    head_dim,
    value_dim,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    tokens = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)  # [BLOCK_T]
    head = tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)

    slots = tl.load(slot_mapping + tokens, mask=tokens < num_tokens, other=-1)
    goes = slots >= 0
    blocks = slots // block_size
    offsets = slots % block_size

    key_mask = goes[:, None] & (dims < head_dim)[None, :]
    key_rows = key + tokens * stride_key + head * stride_key_head
    key_slots = key_pool + blocks * stride_key_block + offsets * stride_key_offset + head * stride_key_pool_head
    k = tl.load(key_rows[:, None] + dims[None, :], mask=key_mask)  # [BLOCK_T, BLOCK_D]
    tl.store(key_slots[:, None] + dims[None, :], k, mask=key_mask)

    value_mask = goes[:, None] & (dims < value_dim)[None, :]
    value_rows = value + tokens * stride_value + head * stride_value_head
    value_slots = (
        value_pool + blocks * stride_value_block + offsets * stride_value_offset + head * stride_value_pool_head
    )
    v = tl.load(value_rows[:, None] + dims[None, :], mask=value_mask)  # [BLOCK_T, BLOCK_D]
    tl.store(value_slots[:, None] + dims[None, :], v, mask=value_mask)


def write_cache(key: Tensor, value: Tensor, key_pool: Tensor, value_pool: Tensor, slot_mapping: Tensor) -> None:
    """Scatter K and V rows to their slots; every other byte of the pools stays as it was.

    Args:
        key: [num_tokens, num_kv_heads, head_dim], any strides (a slice of a fused QKV row), unit last one.
        value: [num_tokens, num_kv_heads, value_dim], likewise.
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim] of key's dtype, a view of any storage order.
        value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise.
        slot_mapping: [num_tokens] int64, block · block_size + offset, each slot at most once; -1 = nowhere.

    Raises:
        ValueError: a tensor's shape, device or strides do not fit; the message names the tensor and its shape.
        TypeError: a dtype does not fit.
    """
    check_write(key, value, key_pool, value_pool, slot_mapping)
    num_tokens, num_kv_heads, head_dim = key.shape
    value_dim, block_size = value.shape[2], key_pool.shape[1]
    configuration = configure_copy(max(head_dim, value_dim), key.device)
    launch(
        cache_write_kernel,
        (triton.cdiv(num_tokens, configuration.block_t), num_kv_heads),
        configuration,
        (
            *(as_bits(key), as_bits(value), as_bits(key_pool), as_bits(value_pool), slot_mapping),
            *(*strides(key)[:2], *strides(value)[:2], *strides(key_pool)[:3], *strides(value_pool)[:3]),
            *(num_tokens, block_size, head_dim, value_dim),
        ),
    )
