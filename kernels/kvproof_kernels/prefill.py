"""Paged prefill, whole or in chunks, mixed with decode rows, in one launch.

Sequence i brings the query rows query_start[i]..query_start[i + 1], which are the last positions of its context: row j
of m rows stands at position n - m + j of the context of n tokens (the causal mask is aligned bottom-right) and sees

    s_t = scale · q_j·k_t    t ≤ n - m + j        o_j = Σ_t softmax(s)_t · v_t        lse_j = ln Σ_t exp(s_t)

with the K and V of this step already written to the pool. So a chunk is a prefill with m < n and a decode token has
m = 1. Rows with m > n that come before position 0 see nothing and give 0 and -inf.

The (row, head of the group) pairs of a sequence and key head are laid out in one line, row-major, and cut into tiles of
BLOCK_M: every group size fills its tiles, and K and V are read once for the whole group. Tiles of tokens behind the
last position that a tile of rows sees are not visited (FlashAttention-2, Dao 2023, section 3.1); pages are walked as
in ``decode.py`` (PagedAttention, Kwon et al., SOSP 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.old_launch import LOG2_E, Configuration, configure, launch, strides
from kvproof_kernels.old_steps import finish_softmax, gather_rows, online_softmax, walk_block_table
from kvproof_kernels.old_validation import check_attention, check_query_start

UNSPECIALIZED = [
    "block_tables", "context_lens", "query_start", "lse", "stride_table", "stride_lse", "group_size", "block_size",
]  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def prefill_kernel(
    query,  # [num_tokens, num_q_heads, head_dim]
    key_pool,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_pool,  # [num_blocks, block_size, num_kv_heads, value_dim]
    block_tables,  # [num_seqs, max_blocks] int32
    context_lens,  # [num_seqs] int32
    query_start,  # [num_seqs + 1] int32
    out,  # [num_tokens, num_q_heads, value_dim]
    lse,  # [num_tokens, num_q_heads] float32
    scale_log2,  # scale · log2(e): scores are in units of log2
    stride_query, stride_query_head,
    stride_key_block, stride_key_offset, stride_key_head,
    stride_value_block, stride_value_offset, stride_value_head,
    stride_table,
    stride_out, stride_out_head,
    stride_lse,
    group_size,  # query heads a key head
    block_size,
    head_dim,
    value_dim,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    sequence = tl.program_id(2).to(tl.int64)

    first_row = tl.load(query_start + sequence)
    query_len = tl.load(query_start + sequence + 1) - first_row
    if tile * BLOCK_M >= query_len * group_size:
        return

    context_len = tl.load(context_lens + sequence)
    pairs = tile * BLOCK_M + tl.arange(0, BLOCK_M)  # of (row, head of the group), [BLOCK_M]
    exists = pairs < query_len * group_size
    rows = (first_row + pairs // group_size).to(tl.int64)
    heads = kv_head * group_size + pairs % group_size
    positions = context_len - query_len + pairs // group_size
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_DV)

    block_table = block_tables + sequence * stride_table
    keys = key_pool + kv_head * stride_key_head
    values = value_pool + kv_head * stride_value_head

    q = tl.load(
        query + rows[:, None] * stride_query + heads[:, None] * stride_query_head + dims[None, :],
        mask=exists[:, None] & (dims < head_dim)[None, :],
        other=0.0,
    )  # [BLOCK_M, BLOCK_D]
    if UPCAST:
        q = q.to(tl.float32)

    last_pair = tl.minimum(tile * BLOCK_M + BLOCK_M, query_len * group_size) - 1
    num_visible = context_len - query_len + last_pair // group_size + 1  # to the last row of this tile

    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    normalizer = tl.full([BLOCK_M], 0.0, tl.float32)
    accumulator = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)
    for start in range(0, num_visible, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        owned = tokens < num_visible
        blocks, offsets = walk_block_table(block_table, tokens, owned, block_size)
        k = gather_rows(keys, blocks, offsets, owned, stride_key_block, stride_key_offset, dims, head_dim, UPCAST)
        scores = tl.dot(q, k.T, input_precision="ieee") * scale_log2  # [BLOCK_M, BLOCK_N]
        # No row that exists stands behind num_visible, so this hides what is not owned as well.
        scores = tl.where(tokens[None, :] <= positions[:, None], scores, float("-inf"))
        v = gather_rows(
            values, blocks, offsets, owned, stride_value_block, stride_value_offset, value_dims, value_dim, UPCAST
        )
        maximum, normalizer, accumulator = online_softmax(scores, v, maximum, normalizer, accumulator)

    output, log_sum_exp = finish_softmax(maximum, normalizer, accumulator)
    tl.store(
        out + rows[:, None] * stride_out + heads[:, None] * stride_out_head + value_dims[None, :],
        output.to(out.dtype.element_ty),
        mask=exists[:, None] & (value_dims < value_dim)[None, :],
    )
    tl.store(lse + rows * stride_lse + heads, log_sum_exp, mask=exists)


def paged_prefill(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    *,
    max_query_len: int,
    scale: float,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    configuration: Configuration | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal attention of the last positions of every context.

    Args:
        query: [num_tokens, num_q_heads, head_dim] float16, bfloat16 or float32; any strides, unit last one.
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim], a view of any storage order, unit last stride.
        value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise.
        block_tables: [num_seqs, max_blocks] int32; entries past a sequence's last block are never read.
        context_lens: [num_seqs] int32, tokens of each sequence with this step's own.
        query_start: [num_seqs + 1] int32, from 0 to num_tokens, never falling.
        max_query_len: the longest sequence's query rows, or more; known to the host, it sizes the grid.
        scale: multiplies q·k.
        out: [num_tokens, num_q_heads, value_dim] of query's dtype, written to.
        lse: [num_tokens, num_q_heads] float32, written to.
        configuration: tile shape and warps; None: ``launch.configure`` chooses.

    Returns:
        out and lse (natural logarithm).

    Raises:
        ValueError: a tensor's shape, device or strides do not fit; the message names the tensor and its shape.
        TypeError: a dtype does not fit.
    """
    num_tokens, num_q_heads, head_dim = query.shape if query.dim() == 3 else (0, 0, 0)
    value_dim = value_pool.shape[-1]
    out = query.new_empty((num_tokens, num_q_heads, value_dim)) if out is None else out
    lse = query.new_empty((num_tokens, num_q_heads), dtype=torch.float32) if lse is None else lse
    check_query_start(query_start, block_tables, max_query_len)
    check_attention(query, key_pool, value_pool, block_tables, context_lens, out, lse, query_start=query_start)
    num_kv_heads, block_size = key_pool.shape[2], key_pool.shape[1]
    group_size = num_q_heads // num_kv_heads
    configuration = configuration or configure("prefill", max(head_dim, value_dim), query.dtype, query.device)
    launch(
        prefill_kernel,
        (triton.cdiv(max_query_len * group_size, configuration.block_m), num_kv_heads, block_tables.shape[0]),
        configuration,
        (
            *(query, key_pool, value_pool, block_tables, context_lens, query_start, out, lse, scale * LOG2_E),
            *(*strides(query)[:2], *strides(key_pool)[:3], *strides(value_pool)[:3]),
            *(block_tables.stride(0), *strides(out)[:2], lse.stride(0)),
            *(group_size, block_size, head_dim, value_dim),
        ),
    )
    return out, lse
