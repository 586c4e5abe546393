"""Paged decode: one query token a sequence against the K and V that its block table points to.

For a sequence with context n and a query head h, whose key head is h // group_size,

    s_t = scale · q·k_t        o = Σ_t softmax(s)_t · v_t        lse = ln Σ_t exp(s_t)        t < n

where token t lies in slot ``t % block_size`` of block ``block_table[t // block_size]`` (PagedAttention, Kwon et al.,
SOSP 2023). Scores never leave the chip: softmax is taken online over tiles of tokens (Milakov & Gimelshein 2018;
FlashAttention-2, Dao 2023).

One program serves one sequence and one key head, so that K and V are read once for the whole group of query heads
(a group above BLOCK_M takes further programs). Tiles count tokens, not blocks: any block size works and a tile may span
pages. How tokens fall into tiles depends on nothing but BLOCK_N.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.old_launch import LOG2_E, Configuration, configure, launch, strides
from kvproof_kernels.old_steps import finish_softmax, gather_rows, online_softmax, walk_block_table
from kvproof_kernels.old_validation import check_attention

UNSPECIALIZED = ["block_tables", "context_lens", "lse", "stride_table", "stride_lse", "group_size", "block_size"]


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def decode_kernel(
    query,  # [num_seqs, num_q_heads, head_dim]
    key_pool,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_pool,  # [num_blocks, block_size, num_kv_heads, value_dim]
    block_tables,  # [num_seqs, max_blocks] int32
    context_lens,  # [num_seqs] int32
    out,  # [num_seqs, num_q_heads, value_dim]
    lse,  # [num_seqs, num_q_heads] float32
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
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    members = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)  # of the group, [BLOCK_M]
    heads = kv_head * group_size + members
    in_group = members < group_size
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_DV)

    context_len = tl.load(context_lens + sequence)
    block_table = block_tables + sequence * stride_table
    keys = key_pool + kv_head * stride_key_head
    values = value_pool + kv_head * stride_value_head

    q = tl.load(
        query + sequence * stride_query + heads[:, None] * stride_query_head + dims[None, :],
        mask=in_group[:, None] & (dims < head_dim)[None, :],
        other=0.0,
    )  # [BLOCK_M, BLOCK_D]
    if UPCAST:
        q = q.to(tl.float32)

    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    normalizer = tl.full([BLOCK_M], 0.0, tl.float32)
    accumulator = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)
    for start in range(0, context_len, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        owned = tokens < context_len
        blocks, offsets = walk_block_table(block_table, tokens, owned, block_size)
        k = gather_rows(keys, blocks, offsets, owned, stride_key_block, stride_key_offset, dims, head_dim, UPCAST)
        scores = tl.dot(q, k.T, input_precision="ieee") * scale_log2  # [BLOCK_M, BLOCK_N]
        scores = tl.where(owned[None, :], scores, float("-inf"))
        v = gather_rows(
            values, blocks, offsets, owned, stride_value_block, stride_value_offset, value_dims, value_dim, UPCAST
        )
        maximum, normalizer, accumulator = online_softmax(scores, v, maximum, normalizer, accumulator)

    output, log_sum_exp = finish_softmax(maximum, normalizer, accumulator)
    tl.store(
        out + sequence * stride_out + heads[:, None] * stride_out_head + value_dims[None, :],
        output.to(out.dtype.element_ty),
        mask=in_group[:, None] & (value_dims < value_dim)[None, :],
    )
    tl.store(lse + sequence * stride_lse + heads, log_sum_exp, mask=in_group)


def paged_decode(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    configuration: Configuration | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of one query token a sequence over its whole context.

    Args:
        query: [num_seqs, num_q_heads, head_dim] float16, bfloat16 or float32; any strides, unit last one.
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim], a view of any storage order, unit last stride.
        value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise.
        block_tables: [num_seqs, max_blocks] int32; entries past a sequence's last block are never read.
        context_lens: [num_seqs] int32; 0 gives output 0 and LSE -inf.
        scale: multiplies q·k.
        out: [num_seqs, num_q_heads, value_dim] of query's dtype, written to.
        lse: [num_seqs, num_q_heads] float32, written to.
        configuration: tile shape and warps; None: ``launch.configure`` chooses.

    Returns:
        out and lse (natural logarithm).

    Raises:
        ValueError: a tensor's shape, device or strides do not fit; the message names the tensor and its shape.
        TypeError: a dtype does not fit.
    """
    num_seqs, num_q_heads, head_dim = query.shape if query.dim() == 3 else (0, 0, 0)
    value_dim = value_pool.shape[-1]
    out = query.new_empty((num_seqs, num_q_heads, value_dim)) if out is None else out
    lse = query.new_empty((num_seqs, num_q_heads), dtype=torch.float32) if lse is None else lse
    check_attention(query, key_pool, value_pool, block_tables, context_lens, out, lse)
    num_kv_heads, block_size = key_pool.shape[2], key_pool.shape[1]
    group_size = num_q_heads // num_kv_heads
    configuration = configuration or configure("decode", max(head_dim, value_dim), query.dtype, query.device)
    launch(
        decode_kernel,
        (num_seqs, num_kv_heads, triton.cdiv(group_size, configuration.block_m)),
        configuration,
        (
            *(query, key_pool, value_pool, block_tables, context_lens, out, lse, scale * LOG2_E),
            *(*strides(query)[:2], *strides(key_pool)[:3], *strides(value_pool)[:3]),
            *(block_tables.stride(0), *strides(out)[:2], lse.stride(0)),
            *(group_size, block_size, head_dim, value_dim),
        ),
    )
    return out, lse
