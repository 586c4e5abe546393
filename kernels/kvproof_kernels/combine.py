"""Merge partial results of attention, as split contexts and shared prefixes leave them.

Attention over disjoint sets of tokens is a monoid: with outputs o_i, each already divided by its own sum, and
lse_i = ln Σ exp(s),

    lse = ln Σ_i exp(lse_i)        o = Σ_i exp(lse_i - lse) · o_i        identity: o = 0, lse = -inf

(flash-decoding, Dao et al. 2023; cascade attention, Ye et al. 2024). The empty result adds nothing, and where all are
empty the merged one is. A sink is one more part, with o = 0 and lse = the sink.

One program merges one query row of one head, BLOCK_P parts at a time, online as in ``steps.online_softmax``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvproof_kernels.launch import launch, strides
from kvproof_kernels.steps import LN_2, LOG2_E
from kvproof_kernels.tensor_checks import check_dims, check_shape
from kvproof_kernels.tiles import merge_tile_for
from kvproof_kernels.validation import check_partials

UNSPECIALIZED = ["partial_lse", "partial_start", "sinks", "lse", "stride_lse", "num_q_heads"]


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNSPECIALIZED)
def combine_kernel(
    partial_out,  # [num_partials, num_q_heads, value_dim] float32
    partial_lse,  # [num_partials, num_q_heads] float32
    partial_start,  # [num_tokens + 1] int32
    sinks,  # [num_q_heads] float32, -inf where there is none
    out,  # [num_tokens, num_q_heads, value_dim]
    lse,  # [num_tokens, num_q_heads] float32
    stride_out, stride_out_head,
    stride_lse,
    num_q_heads,
    value_dim,
    BLOCK_P: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, end = tl.load(partial_start + row), tl.load(partial_start + row + 1)
    if first == end:
        return  # an item gave the result itself
    dims = tl.arange(0, BLOCK_DV)

    maximum = tl.load(sinks + head) * LOG2_E
    normalizer = tl.where(maximum == float("-inf"), 0.0, 1.0)
    accumulator = tl.full([BLOCK_DV], 0.0, tl.float32)
    for start in range(first, end, BLOCK_P):
        partials = start + tl.arange(0, BLOCK_P)  # [BLOCK_P]
        exists = partials < end
        at = partials.to(tl.int64) * num_q_heads + head
        logits = tl.load(partial_lse + at, mask=exists, other=float("-inf")) * LOG2_E
        outputs = tl.load(
            partial_out + at[:, None] * value_dim + dims[None, :],
            mask=exists[:, None] & (dims < value_dim)[None, :],
            other=0.0,
        )  # [BLOCK_P, BLOCK_DV]
        new_maximum = tl.maximum(maximum, tl.max(logits, 0))
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        rescale = tl.exp2(maximum - shift)
        weights = tl.exp2(logits - shift)  # 0 for an empty part
        normalizer = normalizer * rescale + tl.sum(weights, 0)
        accumulator = accumulator * rescale + tl.sum(weights[:, None] * outputs, 0)
        maximum = new_maximum

    empty = normalizer == 0.0
    divisor = tl.where(empty, 1.0, normalizer)
    output = accumulator / divisor
    log_sum_exp = tl.where(empty, float("-inf"), (maximum + tl.log2(divisor)) * LN_2)
    out_row = out + row * stride_out + head * stride_out_head
    tl.store(out_row + dims, output.to(out.dtype.element_ty), mask=dims < value_dim)
    tl.store(lse + row * stride_lse + head, log_sum_exp)


def combine(
    partial_out: Tensor, partial_lse: Tensor, partial_start: Tensor, sinks: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Merge the parts of each row into ``out`` and ``lse``; rows without parts stay as they are.

    Args:
        partial_out: [num_partials, num_q_heads, value_dim] float32, packed.
        partial_lse: [num_partials, num_q_heads] float32, packed, natural logarithm.
        partial_start: [num_tokens + 1] int32, row i has the parts partial_start[i]..partial_start[i + 1].
        sinks: [num_q_heads] float32, -inf where there is none.
        out: [num_tokens, num_q_heads, value_dim] float16, bfloat16 or float32, written to.
        lse: [num_tokens, num_q_heads] float32, written to.

    Raises:
        ValueError, TypeError: a tensor does not fit; the message names it and its shape.
    """
    check_partials(partial_out, partial_lse, partial_start, sinks, out, lse)
    num_tokens, num_q_heads, value_dim = out.shape
    launch(
        combine_kernel,
        (num_tokens, num_q_heads),
        merge_tile_for(value_dim),
        (
            *(partial_out, partial_lse, partial_start, sinks, out, lse),
            *(*strides(out)[:2], lse.stride(0), num_q_heads, value_dim),
        ),
    )


def merge(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over a union of disjoint sets of tokens, from attention over each of them.

    Args:
        outs: [num_parts, num_tokens, num_q_heads, value_dim] float32.
        lses: [num_parts, num_tokens, num_q_heads] float32, natural logarithm; -inf for a part that saw no token.

    Returns:
        out [num_tokens, num_q_heads, value_dim] and lse [num_tokens, num_q_heads], float32.

    Raises:
        ValueError, TypeError: a tensor does not fit; the message names it and its shape.
    """
    check_dims("outs", outs, 4)
    num_parts, num_tokens, num_q_heads, _ = outs.shape
    check_shape("lses", lses, (num_parts, num_tokens, num_q_heads))
    out, lse = outs.new_zeros(outs.shape[1:]), lses.new_full(lses.shape[1:], float("-inf"))  # as no part leaves them
    partial_out, partial_lse = (part.transpose(0, 1).flatten(0, 1).contiguous() for part in (outs, lses))
    starts = torch.arange(num_tokens + 1, dtype=torch.int32, device=outs.device) * num_parts
    no_sinks = lse.new_full((num_q_heads,), float("-inf"))
    combine(partial_out, partial_lse, starts, no_sinks, out, lse)
    return out, lse
