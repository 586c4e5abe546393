"""Block copy: duplicate whole blocks of K and V, as copy-on-write and forks order it.

PagedAttention batches the copies of a step into one launch (Kwon et al., SOSP 2023, section 5.1). No destination may
be another pair's source or destination, so that the order of the pairs means nothing. Blocks are moved as bits. One
program moves one key head of one block, BLOCK_T slots at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.launch import as_bits, configure_copy, launch, strides
from kvproof_kernels.validation import check_pools, check_rows

UNSPECIALIZED = ["sources", "destinations", "block_size"]


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def block_copy_kernel(
    key_pool,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_pool,  # [num_blocks, block_size, num_kv_heads, value_dim]
    sources,  # [num_copies] int64
    destinations,  # [num_copies] int64
    stride_key_block, stride_key_offset, stride_key_head,
    stride_value_block, stride_value_offset, stride_value_head,
    block_size,
    head_dim,
    value_dim,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    source = tl.load(sources + tl.program_id(0))
    destination = tl.load(destinations + tl.program_id(0))
    head = tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)

    for start in range(0, block_size, BLOCK_T):
        offsets = (start + tl.arange(0, BLOCK_T)).to(tl.int64)  # [BLOCK_T]

        key_mask = (offsets < block_size)[:, None] & (dims < head_dim)[None, :]
        key_tile = (offsets * stride_key_offset + head * stride_key_head)[:, None] + dims[None, :]
        k = tl.load(key_pool + source * stride_key_block + key_tile, mask=key_mask)  # [BLOCK_T, BLOCK_D]
        tl.store(key_pool + destination * stride_key_block + key_tile, k, mask=key_mask)

        value_mask = (offsets < block_size)[:, None] & (dims < value_dim)[None, :]
        value_tile = (offsets * stride_value_offset + head * stride_value_head)[:, None] + dims[None, :]
        v = tl.load(value_pool + source * stride_value_block + value_tile, mask=value_mask)  # [BLOCK_T, BLOCK_D]
        tl.store(value_pool + destination * stride_value_block + value_tile, v, mask=value_mask)


def copy_blocks(key_pool: Tensor, value_pool: Tensor, copies: Iterable[tuple[int, int]]) -> None:
    """Copy whole blocks of both pools, bit for bit.

    Args:
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim], a view of any storage order.
        value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise.
        copies: (source block, destination block) pairs.

    Raises:
        ValueError: a destination is another pair's source or destination, an id lies outside the pool, or a pool does
            not fit. Nothing is copied then.
        TypeError: a pool's dtype does not fit.
    """
    check_pools(key_pool, value_pool)
    check_rows(key_pool=key_pool, value_pool=value_pool)
    pairs = [(int(source), int(destination)) for source, destination in copies]
    _check_copies(pairs, key_pool.shape[0])
    if not pairs:
        return
    sources, destinations = torch.tensor(pairs, dtype=torch.int64, device=key_pool.device).T.contiguous()
    _, block_size, num_kv_heads, head_dim = key_pool.shape
    value_dim = value_pool.shape[3]
    launch(
        block_copy_kernel,
        (len(pairs), num_kv_heads),
        configure_copy(max(head_dim, value_dim), key_pool.device),
        (
            *(as_bits(key_pool), as_bits(value_pool), sources, destinations),
            *(*strides(key_pool)[:3], *strides(value_pool)[:3]),
            *(block_size, head_dim, value_dim),
        ),
    )


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
