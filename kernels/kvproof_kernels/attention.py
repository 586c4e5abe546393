"""Paged attention: decode, drafts, chunks and prompts in one launch, each program one work item.

Query row j stands at position p_j of its sequence and sees the tokens t ≤ p_j, of a window w only t > p_j - w:

    s_jt = scale · q_j·k_t        o_j = Σ_t softmax(s_j)_t · v_t        lse_j = ln Σ_t exp(s_jt)

where token t lies in slot ``t % block_size`` of block ``block_table[t // block_size]`` (PagedAttention, Kwon et al.,
SOSP 2023). Scores never leave the chip: softmax is taken online over tiles of tokens (Milakov & Gimelshein 2018;
FlashAttention-2, Dao 2023). A sink is one more logit without a value, and counts in the LSE (Xiao et al. 2024).

One program serves one key head, for the (query row, head of its group) pairs of one item laid out in one line: every
group size fills its tile, and K and V are read once for the whole group. Tiles count tokens, not blocks: any block size
works and a tile may span pages. Which rows and tokens make an item is planned on the host, see ``work.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.combine import combine
from kvproof_kernels.launch import launch, strides
from kvproof_kernels.steps import (
    LOG2_E,
    cap_and_bias,
    finish_softmax,
    gather_rows,
    gather_scales,
    online_softmax,
    walk_block_table,
)
from kvproof_kernels.tiles import Configuration
from kvproof_kernels.work import Work

NO_WINDOW = 2**30

UNSPECIALIZED = [
    "block_tables", "items", "positions", "partial_start", "key_scales", "value_scales", "slopes", "sinks", "lse",
    "partial_lse", "window", "stride_table", "stride_lse", "num_kv_heads", "group_size", "block_size",
    "stride_scale_block", "stride_scale_offset",
]  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def paged_attention_kernel(
    query,  # [num_tokens, num_q_heads, head_dim]
    key_pool,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_pool,  # [num_blocks, block_size, num_kv_heads, value_dim]
    block_tables,  # [num_seqs, max_blocks] int32
    items,  # [num_items, 6] int32: sequence, first row, rows, first token, end of the tokens, place among partials
    positions,  # [num_tokens] int32
    partial_start,  # [num_tokens + 1] int32
    key_scales,  # [num_kv_heads] float32, or [num_blocks, block_size, num_kv_heads] with TOKEN_SCALES
    value_scales,  # likewise
    slopes,  # [num_q_heads] float32
    sinks,  # [num_q_heads] float32, -inf where there is none
    out,  # [num_tokens, num_q_heads, value_dim]
    lse,  # [num_tokens, num_q_heads] float32
    partial_out,  # [num_partials, num_q_heads, value_dim] float32
    partial_lse,  # [num_partials, num_q_heads] float32
    scale,
    softcap,
    window,
    stride_query, stride_query_head,
    stride_key_block, stride_key_offset, stride_key_head,
    stride_value_block, stride_value_offset, stride_value_head,
    stride_scale_block, stride_scale_offset,
    stride_table,
    stride_out, stride_out_head,
    stride_lse,
    num_kv_heads,
    group_size,  # query heads a key head
    block_size,
    head_dim,
    value_dim,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,  # the head dim's rest beyond BLOCK_D, 0 if there is none
    BLOCK_DV: tl.constexpr,
    KEY_TYPE: tl.constexpr,  # in which q·k is multiplied, and p·v
    VALUE_TYPE: tl.constexpr,
    OPTIONS: tl.constexpr,
    SHARED_KV: tl.constexpr,
    TOKEN_SCALES: tl.constexpr,
):  # fmt: skip
    item = items + (tl.program_id(0) // num_kv_heads) * 6
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    sequence = tl.load(item).to(tl.int64)
    num_rows = tl.load(item + 2)
    first_token, end = tl.load(item + 3), tl.load(item + 4)
    place = tl.load(item + 5)
    if num_rows == 0:
        return

    pairs = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)  # of (row, head of the group), [BLOCK_M]
    exists = pairs < num_rows * group_size
    rows = (tl.load(item + 1) + pairs // group_size).to(tl.int64)
    heads = kv_head * group_size + pairs % group_size
    row_positions = tl.load(positions + rows, mask=exists, other=-1)
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_DV)

    block_table = block_tables + sequence * stride_table
    keys = key_pool + kv_head * stride_key_head
    values = value_pool + kv_head * stride_value_head

    q_rows = query + rows[:, None] * stride_query + heads[:, None] * stride_query_head
    q = tl.load(q_rows + dims[None, :], mask=exists[:, None] & (dims < head_dim)[None, :], other=0.0).to(KEY_TYPE)
    if BLOCK_R > 0:
        rest_dims = BLOCK_D + tl.arange(0, BLOCK_R)
        rest_mask = exists[:, None] & (rest_dims < head_dim)[None, :]
        q_rest = tl.load(q_rows + rest_dims[None, :], mask=rest_mask, other=0.0).to(KEY_TYPE)  # [BLOCK_M, BLOCK_R]

    value_scale = 1.0
    if not TOKEN_SCALES:
        scale *= tl.load(key_scales + kv_head)
        value_scale = tl.load(value_scales + kv_head)
    scale_log2 = scale * LOG2_E  # scores are in units of log2
    if OPTIONS:
        slope = tl.load(slopes + heads, mask=exists, other=0.0)

    # The sink counts once: with the item that gives the result itself, or else when the partial results are merged.
    maximum = tl.load(sinks + heads, mask=exists & (place < 0), other=float("-inf")) * LOG2_E
    normalizer = tl.where(maximum == float("-inf"), 0.0, 1.0)
    accumulator = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)
    for start in range(first_token, end, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        owned = tokens < end
        blocks, offsets = walk_block_table(block_table, tokens, owned, block_size)
        k = gather_rows(keys, blocks, offsets, owned, stride_key_block, stride_key_offset, dims, head_dim, KEY_TYPE)
        scores = tl.dot(q, k.T, input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        if BLOCK_R > 0:
            k_rest = gather_rows(
                keys, blocks, offsets, owned, stride_key_block, stride_key_offset, rest_dims, head_dim, KEY_TYPE
            )
            scores = tl.dot(q_rest, k_rest.T, scores, input_precision="ieee")
        if SHARED_KV:
            v = k
        else:
            v = gather_rows(
                values, blocks, offsets, owned, stride_value_block, stride_value_offset, value_dims, value_dim,
                VALUE_TYPE,
            )  # fmt: skip
        v_scales = offsets
        if TOKEN_SCALES:
            scores *= gather_scales(
                key_scales + kv_head, blocks, offsets, owned, stride_scale_block, stride_scale_offset
            )[None, :]
            v_scales = gather_scales(
                value_scales + kv_head, blocks, offsets, owned, stride_scale_block, stride_scale_offset
            )
        distance = tokens[None, :] - row_positions[:, None]
        if OPTIONS:
            scores = cap_and_bias(scores * scale, distance, softcap, slope) * LOG2_E
        else:
            scores *= scale_log2
        visible = owned[None, :] & (distance <= 0) & (distance > -window)
        scores = tl.where(visible, scores, float("-inf"))
        maximum, normalizer, accumulator = online_softmax(
            scores, v, v_scales, maximum, normalizer, accumulator, TOKEN_SCALES
        )

    output, log_sum_exp = finish_softmax(maximum, normalizer, accumulator)
    output *= value_scale
    mask = exists[:, None] & (value_dims < value_dim)[None, :]
    if place < 0:
        out_rows = out + rows[:, None] * stride_out + heads[:, None] * stride_out_head
        tl.store(out_rows + value_dims[None, :], output.to(out.dtype.element_ty), mask=mask)
        tl.store(lse + rows * stride_lse + heads, log_sum_exp, mask=exists)
    else:
        num_q_heads = num_kv_heads * group_size
        partials = (tl.load(partial_start + rows, mask=exists, other=0) + place).to(tl.int64) * num_q_heads + heads
        tl.store(partial_out + partials[:, None] * value_dim + value_dims[None, :], output, mask=mask)
        tl.store(partial_lse + partials, log_sum_exp, mask=exists)


@dataclass(frozen=True)
class Terms:
    """What makes a score of q·k, and what makes numbers of codes; tensors are float32 on the launch's device."""

    scale: float
    softcap: float
    """0: none."""
    window: int
    """``NO_WINDOW``: none."""
    slopes: Tensor
    """[num_q_heads] of ALiBi, 0: no bias."""
    sinks: Tensor
    """[num_q_heads], -inf: no sink."""
    key_scales: Tensor
    """[num_kv_heads], or [num_blocks, block_size, num_kv_heads] where the configuration has scales a token."""
    value_scales: Tensor


def paged_attention(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    work: Work,
    terms: Terms,
    configuration: Configuration,
    out: Tensor,
    lse: Tensor,
    partials: tuple[Tensor, Tensor],
) -> None:
    """Run the items, then merge what they left in parts. Nothing is checked here: ``plan.py`` has done it.

    Args:
        query: [num_tokens, num_q_heads, head_dim]; any strides, unit last one, as all tensors below.
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim], a view of any storage order.
        value_pool: [num_blocks, block_size, num_kv_heads, value_dim], likewise.
        block_tables: [num_seqs, max_blocks] int32; entries past a sequence's last block are never read.
        work: the items and where partial results go.
        terms: scale, options, scales of quantised pools.
        configuration: what is compiled.
        out: [num_tokens, num_q_heads, value_dim], written to.
        lse: [num_tokens, num_q_heads] float32, written to; natural logarithm.
        partials: [num_partials, num_q_heads, value_dim] and [num_partials, num_q_heads], float32, packed.
    """
    num_kv_heads, block_size = key_pool.shape[2], key_pool.shape[1]
    group_size = query.shape[1] // num_kv_heads
    by_token = terms.key_scales.stride()[:2] if configuration.token_scales else (0, 0)
    launch(
        paged_attention_kernel,
        (work.items.shape[0] * num_kv_heads, triton.cdiv(group_size, configuration.block_m)),
        configuration,
        (
            *(query, key_pool, value_pool, block_tables, work.items, work.positions, work.partial_start),
            *(terms.key_scales, terms.value_scales, terms.slopes, terms.sinks, out, lse, *partials),
            *(terms.scale, terms.softcap, terms.window),
            *(*strides(query)[:2], *strides(key_pool)[:3], *strides(value_pool)[:3], *by_token),
            *(block_tables.stride(0), *strides(out)[:2], lse.stride(0)),
            *(num_kv_heads, group_size, block_size, query.shape[2], out.shape[2]),
        ),
    )
    if work.num_partials:
        combine(*partials, work.partial_start, terms.sinks, out, lse)
