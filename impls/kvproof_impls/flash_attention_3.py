"""FlashAttention 3 through its page table: one entry, ``flash_attn_with_kvcache``, with packed ragged queries.

Written against ``flash_attn_interface`` of flash_attn_3 3.0.0 (Dao-AILab/flash-attention, ``hopper/``, as of
0251105a2fb1): pages of any size, LSE to base e, latent attention by ``qv``. The library is imported when a launch is
planned, never before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

LARGEST_HEAD_DIM = 256


class FlashAttention3Kernel:
    """Contract ``PagedKernel`` over ``flash_attn_interface``; it offers no cache write and no block copy of its own.

    Not declared: ``dirty_tail`` (V past the context is read and multiplied by 0: issues 1745 and 2374 of its
    repository), ``batch_bitwise`` and ``capacity_bitwise`` (the number of splits depends on the batch and on the width
    of the table: ``get_num_splits`` in ``flash_api.cpp``; issue 2450).
    """

    pool_order = "NHD"
    features = frozenset(["empty_rows", "lse", "mla", "relabel_bitwise", "run_bitwise", "softcap", "window"])

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in ("float16", "bfloat16"):
            return f"dtype {spec.dtype!r}: its matrix products take float16, bfloat16 and 8-bit queries only"
        if spec.kv_dtype not in (None, spec.dtype) or spec.k_scale != 1 or spec.v_scale != 1:
            return f"kv_dtype {spec.kv_dtype!r}: query, key and value must have one type ({spec.dtype})"
        if spec.sinks is not None or spec.alibi_slopes is not None:
            return "sinks, alibi_slopes: it takes neither"
        return _unsupported_latent(spec) if spec.mla else _unsupported_dims(spec)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """``mainloop_fwd_sm90_tma_gmma_ws.hpp``: weights converted to the element type for the second product; scores,
        sums and the partial results of splits (``out_accum``) are float32."""
        return {"p": spec.dtype, "accumulator": "float32", "partials": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        from flash_attn_interface import flash_attn_with_kvcache

        options = {
            "cache_seqlens": batch.context_lens,
            "page_table": batch.block_tables.contiguous(),
            "cu_seqlens_q": batch.query_start,
            "max_seqlen_q": batch.max_query_len,
            "softmax_scale": spec.scale_value,
            "causal": spec.causal,
            "window_size": (-1, -1) if spec.window is None else (spec.window - 1, 0),
            "softcap": spec.softcap or 0.0,
            "return_softmax_lse": True,
        }

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            result, lse, *_ = flash_attn_with_kvcache(**operands(spec, query, pools), **options)
            if out is not None:
                result = out.copy_(result)
            # All contexts empty: +inf, by a shortcut in front of the kernel; no other row can have it.
            lse = lse.transpose(0, 1).masked_fill(lse.transpose(0, 1) == float("inf"), float("-inf"))
            return (result, lse) if spec.return_lse else result

        return launch


def operands(spec: AttentionSpec, query: Tensor, pools: KVPools) -> dict[str, Tensor]:
    """Packed queries, and the pools as they are; of a latent pool, views: K is what is not V."""
    if not spec.mla:
        return {"q": query, "k_cache": pools.key, "v_cache": pools.value}
    dims = [spec.value_dim_value, spec.head_dim - spec.value_dim_value]
    (qv, q), (value, key) = query.split(dims, -1), pools.key.split(dims, -1)
    return {"q": q, "qv": qv, "k_cache": key, "v_cache": value}


def _unsupported_dims(spec: AttentionSpec) -> str | None:
    dims = (spec.head_dim, spec.value_dim_value)
    if spec.head_dim > LARGEST_HEAD_DIM or spec.head_dim % 8 or spec.value_dim_value % 8:
        return f"head_dim {spec.head_dim}: must be a multiple of 8, at most {LARGEST_HEAD_DIM}"
    other = (128 < dims[0] <= 192 and 96 < dims[1] <= 128) or (dims[0] <= 64 and dims[1] <= 512)
    if dims[0] != dims[1] and not other:
        return f"value_dim {spec.value_dim}: other than head_dim only 97 to 128 with 192, or up to 512 with 64"
    return None


def _unsupported_latent(spec: AttentionSpec) -> str | None:
    if spec.head_dim - spec.value_dim_value > 64 or not 256 <= spec.value_dim_value <= 512:
        return f"{spec.head_dim} dims, {spec.value_dim} of them values: qv takes 256 to 512 values and 64 dims beside"
    return None
