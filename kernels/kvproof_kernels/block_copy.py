"""Block copy: duplicate whole blocks of K and V, as copy-on-write and forks order it.

PagedAttention batches the copies of a step into one launch (Kwon et al., SOSP 2023, section 5.1). No destination may
be another pair's source or destination, so that the order of the pairs means nothing. Blocks are moved as bits, and
the scales of their tokens, where there are any, go along. One program moves BLOCK_T slots of one key head of a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.launch import as_bits, launch
from kvproof_kernels.moves import (
    block_pairs,
    check_move_pools,
    check_token_scales,
    move_tile,
    row_strides,
    scale_strides,
)
from kvproof_kernels.tiles import CopyConfiguration

SCALE_STRIDES = [
    *("stride_key_scale_block", "stride_key_scale_offset", "stride_key_scale_head"),
    *("stride_value_scale_block", "stride_value_scale_offset", "stride_value_scale_head"),
]
UNSPECIALIZED = ["key_scale", "value_scale", "sources", "destinations", *SCALE_STRIDES, "block_size"]


@dataclass(frozen=True)
class BlockCopyConfiguration(CopyConfiguration):
    """What one compiled form is specialised for, besides the size of an element."""

    token_scales: bool = False

    @property
    def constants(self) -> dict[str, Any]:
        return super().constants | {"TOKEN_SCALES": self.token_scales}


@triton.jit
def copy_rows(
    pool, scale, source, destination, offsets, head, block_size, num_dims,
    stride_block, stride_offset, stride_head,
    stride_scale_block, stride_scale_offset, stride_scale_head,
    BLOCK_D: tl.constexpr, TOKEN_SCALES: tl.constexpr,
):  # fmt: skip
    """One head's rows, and their scales, at ``offsets`` [BLOCK_T] of a block; ids and offsets are int64."""
    dims = tl.arange(0, BLOCK_D)
    inside = offsets < block_size
    mask = inside[:, None] & (dims < num_dims)[None, :]
    rows = pool + offsets * stride_offset + head * stride_head
    tile = tl.load((rows + source * stride_block)[:, None] + dims[None, :], mask=mask)  # [BLOCK_T, BLOCK_D]
    tl.store((rows + destination * stride_block)[:, None] + dims[None, :], tile, mask=mask)
    if TOKEN_SCALES:
        places = scale + offsets * stride_scale_offset + head * stride_scale_head
        scales = tl.load(places + source * stride_scale_block, mask=inside)  # [BLOCK_T]
        tl.store(places + destination * stride_scale_block, scales, mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def block_copy_kernel(
    key_pool,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_pool,  # [num_blocks, block_size, num_kv_heads, value_dim], or None: the keys alone
    key_scale,  # [num_blocks, block_size, num_kv_heads] with TOKEN_SCALES
    value_scale,
    sources,  # [num_copies] int64
    destinations,  # [num_copies] int64
    stride_key_block, stride_key_offset, stride_key_head,
    stride_value_block, stride_value_offset, stride_value_head,
    stride_key_scale_block, stride_key_scale_offset, stride_key_scale_head,
    stride_value_scale_block, stride_value_scale_offset, stride_value_scale_head,
    block_size,
    head_dim,
    value_dim,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKEN_SCALES: tl.constexpr,
):  # fmt: skip
    source = tl.load(sources + tl.program_id(0))
    destination = tl.load(destinations + tl.program_id(0))
    head = tl.program_id(1).to(tl.int64)
    offsets = (tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)  # [BLOCK_T]

    copy_rows(
        key_pool, key_scale, source, destination, offsets, head, block_size, head_dim,
        stride_key_block, stride_key_offset, stride_key_head,
        stride_key_scale_block, stride_key_scale_offset, stride_key_scale_head,
        BLOCK_D, TOKEN_SCALES,
    )  # fmt: skip
    if value_pool is not None:
        copy_rows(
            value_pool, value_scale, source, destination, offsets, head, block_size, value_dim,
            stride_value_block, stride_value_offset, stride_value_head,
            stride_value_scale_block, stride_value_scale_offset, stride_value_scale_head,
            BLOCK_D, TOKEN_SCALES,
        )  # fmt: skip


def copy_blocks(
    key_pool: Tensor,
    value_pool: Tensor | None,
    copies: Iterable[tuple[int, int]],
    *,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> None:
    """Copy whole blocks of both pools, bit for bit.

    Args:
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim], a view of any storage order.
        value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise. None, or the first dims of
            the keys (MLA): the keys alone are copied.
        copies: (source block, destination block) pairs.
        key_scale: scales a token, float32 [num_blocks, block_size, num_kv_heads] of any strides; those of the
            destination become those of the source.
        value_scale: likewise; with values both or none.

    Raises:
        ValueError: a destination is another pair's source or destination, an id lies outside the pool, or a pool or
            scale does not fit. Nothing is copied then.
        TypeError: a dtype does not fit, or an id is no integer.
    """
    check_move_pools(key_pool, value_pool)
    if _lies_in(value_pool, key_pool):
        value_pool, value_scale = None, None if _lies_in(value_scale, key_scale) else value_scale
    _check_scales(key_pool, value_pool, key_scale, value_scale)
    pairs = block_pairs(copies)
    _check_copies(pairs, key_pool.shape[0])
    if not pairs:
        return
    sources, destinations = torch.tensor(pairs, dtype=torch.int64, device=key_pool.device).T.contiguous()
    _, block_size, num_kv_heads, head_dim = key_pool.shape
    value_dim = 0 if value_pool is None else value_pool.shape[3]
    block_t, block_d = move_tile(max(head_dim, value_dim), key_pool.device)
    pools = [None if pool is None else as_bits(pool) for pool in (key_pool, value_pool)]
    launch(
        block_copy_kernel,
        (len(pairs), num_kv_heads, triton.cdiv(block_size, block_t)),
        BlockCopyConfiguration(block_t, block_d, token_scales=key_scale is not None),
        (
            *(*pools, key_scale, value_scale, sources, destinations),
            *(*row_strides(key_pool, 3), *row_strides(value_pool, 3)),
            *(*scale_strides(key_scale), *scale_strides(value_scale)),
            *(block_size, head_dim, value_dim),
        ),
    )


def _lies_in(value: Tensor | None, key: Tensor | None) -> bool:
    """Whether the values are the first dims of the keys."""
    if value is None or key is None or value.shape[-1] > key.shape[-1]:
        return False
    return (value.data_ptr(), value.stride()) == (key.data_ptr(), key.stride())


def _check_scales(
    key_pool: Tensor, value_pool: Tensor | None, key_scale: Tensor | None, value_scale: Tensor | None
) -> None:
    if (value_pool is None and value_scale is not None) or (
        value_pool is not None and (key_scale is None) != (value_scale is None)
    ):
        expected = "none, as the values are copied with the keys" if value_pool is None else "both or none"
        given = [name for name, scale in (("key_scale", key_scale), ("value_scale", value_scale)) if scale is not None]
        raise ValueError(f"{' and '.join(given)} given; of the scales of keys and values {expected}")
    scales = {"key_scale": key_scale, "value_scale": value_scale}
    check_token_scales(key_pool, **{name: scale for name, scale in scales.items() if scale is not None})


def _check_copies(pairs: list[tuple[int, int]], num_blocks: int) -> None:
    sources = {source for source, _ in pairs}
    writes = Counter(destination for _, destination in pairs)
    for source, destination in pairs:
        outside = [block for block in (source, destination) if not 0 <= block < num_blocks]
        if outside:
            raise ValueError(f"copy ({source}, {destination}): block {outside[0]} is not in range({num_blocks})")
        if destination in sources or writes[destination] > 1:
            role = "source" if destination in sources else "destination of another copy"
            raise ValueError(
                f"copy ({source}, {destination}): block {destination} is also a {role}, so the result would depend on "
                "the order; make such copies in separate calls"
            )
