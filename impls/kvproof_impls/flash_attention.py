"""FlashAttention 2 through its block table: the decode entry for one query row a sequence, varlen for all else.

Written against flash-attn 2.7 and later: ``flash_attn_with_kvcache`` and ``flash_attn_varlen_func``; limits and options
as read in 2.8.3 (``flash_attn_interface.py``, ``csrc/flash_attn/flash_api.cpp``). The library is imported when a launch
is planned, never before.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

PAGE_MULTIPLE = 256
LARGEST_HEAD_DIM = 256


class FlashAttentionKernel:
    """Contract ``PagedKernel`` over the ``flash-attn`` package; it offers no cache write and no block copy of its own.

    ``dirty_tail``: V past a context is cleared as it is loaded (``flash_fwd_kernel.h``, ``Clear_OOB_MN``).
    ``empty_rows``: a row without keys is zero (documentation of ``causal``). Not declared: ``batch_bitwise`` and
    ``capacity_bitwise`` (the number of splits depends on the batch and on the width of the table:
    ``set_params_splitkv``).
    """

    pool_order = "NHD"
    features = frozenset(
        ["alibi", "dirty_tail", "empty_rows", "lse", "relabel_bitwise", "run_bitwise", "softcap", "window"]
    )

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in ("float16", "bfloat16"):
            return f"dtype {spec.dtype!r}: its matrix products take float16 and bfloat16 only"
        if spec.kv_dtype not in (None, spec.dtype):
            return f"kv_dtype {spec.kv_dtype!r}: query, key and value must have one type ({spec.dtype})"
        if spec.block_size % PAGE_MULTIPLE:
            return f"block_size {spec.block_size}: the page size must be a multiple of {PAGE_MULTIPLE}"
        if spec.head_dim > LARGEST_HEAD_DIM or spec.head_dim % 8:
            return f"head_dim {spec.head_dim}: must be a multiple of 8, at most {LARGEST_HEAD_DIM}"
        return _unsupported_option(spec)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Weights in the type of the query for the second product; accumulators and split results in float32
        (``flash_fwd_kernel.h``: ``convert_type``; ``out_accum``)."""
        return {"p": spec.dtype, "accumulator": "float32", "partials": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        device = batch.block_tables.device
        options = model_options(spec, device)
        decode = all(length == 1 for length in batch.query_lens_host)
        attend = plan_decode(batch, options) if decode else plan_varlen(batch, options)

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            result, lse = attend(query, pools)
            if out is not None:
                result = out.copy_(result)
            # A row without keys gets +inf from the kernel that does not split; no other row can.
            return (result, lse.masked_fill(lse == float("inf"), float("-inf"))) if spec.return_lse else result

        return launch

    def dense(self, spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One decode row a sequence without paging, the baseline of a benchmark: ``query`` [num_seqs, num_q_heads,
        head_dim], ``key`` and ``value`` [num_seqs, context_len, num_kv_heads, head_dim]."""
        from flash_attn import flash_attn_with_kvcache

        out: Tensor = flash_attn_with_kvcache(query[:, None], key, value, **model_options(spec, query.device))
        return out[:, 0]


def model_options(spec: AttentionSpec, device: Any) -> dict[str, Any]:
    """What both entries take for the options of a model."""
    import torch

    slopes = spec.alibi_slopes
    return {
        "softmax_scale": spec.scale_value,
        "causal": spec.causal,
        "window_size": (-1, -1) if spec.window is None else (spec.window - 1, 0),
        "softcap": spec.softcap or 0.0,
        "alibi_slopes": None if slopes is None else torch.tensor(slopes, dtype=torch.float32, device=device),
    }


def plan_decode(batch: PagedBatch, options: Mapping[str, Any]) -> Any:
    """One query row a sequence: query [num_seqs, 1, num_q_heads, head_dim], LSE [num_seqs, num_q_heads, 1]."""
    from flash_attn import flash_attn_with_kvcache

    tables = batch.block_tables.contiguous()

    def attend(query: Tensor, pools: KVPools) -> tuple[Tensor, Tensor]:
        out, lse = flash_attn_with_kvcache(
            query[:, None],
            pools.key,
            pools.value,
            cache_seqlens=batch.context_lens,
            block_table=tables,
            return_softmax_lse=True,
            **options,
        )
        return out[:, 0], lse[:, :, 0]

    return attend


def plan_varlen(batch: PagedBatch, options: Mapping[str, Any]) -> Any:
    """Ragged queries, packed: query [num_tokens, num_q_heads, head_dim], LSE [num_q_heads, num_tokens]."""
    import torch
    from flash_attn import flash_attn_varlen_func

    tables = batch.block_tables.contiguous()
    key_start = torch.tensor([0, *itertools.accumulate(batch.context_lens_host)], dtype=torch.int32)
    key_start = key_start.to(tables.device)

    def attend(query: Tensor, pools: KVPools) -> tuple[Tensor, Tensor]:
        out, lse, _ = flash_attn_varlen_func(
            query,
            pools.key,
            pools.value,
            cu_seqlens_q=batch.query_start,
            cu_seqlens_k=key_start,
            max_seqlen_q=batch.max_query_len,
            max_seqlen_k=batch.max_context_len,
            block_table=tables,
            return_attn_probs=True,
            **options,
        )
        return out, lse.transpose(0, 1)

    return attend


def _unsupported_option(spec: AttentionSpec) -> str | None:
    if spec.value_dim_value != spec.head_dim:
        return f"value_dim {spec.value_dim}: key and value must have one head size ({spec.head_dim})"
    if spec.k_scale != 1 or spec.v_scale != 1:
        return "k_scale, v_scale: it takes no scales for K and V"
    if spec.sinks is not None:
        return "sinks: it knows no logit without a value"
    if spec.alibi_slopes is not None and not spec.causal:
        return "alibi_slopes with causal=False: its bias is -slope·|distance|, which differs for later keys"
    return None
