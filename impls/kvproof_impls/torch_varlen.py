"""torch's own FlashAttention over pages: ``torch.nn.attention.varlen.varlen_attn_out`` with a block table.

Written against torch 2.13.0 (``torch/nn/attention/varlen.py``, and ``mha_varlen_fwd`` in ``flash_api.cpp``, to which it
leads: a copy of FlashAttention 2). On a CPU it raises NotImplementedError. torch is imported when a launch is planned.
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


class TorchVarlenKernel:
    """Contract ``PagedKernel`` over ``varlen_attn_out``; torch offers no cache write and no block copy to go with it.

    Not declared: ``batch_bitwise`` and ``capacity_bitwise``: how far a context is split depends on the longest one of
    the batch (documentation of ``num_splits``).
    """

    pool_order = "NHD"
    features = frozenset(["dirty_tail", "empty_rows", "lse", "out", "relabel_bitwise", "run_bitwise", "window"])

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in ("float16", "bfloat16"):
            return f"dtype {spec.dtype!r}: its matrix products take float16 and bfloat16 only"
        if spec.kv_dtype not in (None, spec.dtype) or spec.k_scale != 1 or spec.v_scale != 1:
            return f"kv_dtype {spec.kv_dtype!r}: query, key and value must have one type ({spec.dtype})"
        if spec.block_size % PAGE_MULTIPLE:
            return f"block_size {spec.block_size}: the page size must be a multiple of {PAGE_MULTIPLE}"
        if spec.head_dim > LARGEST_HEAD_DIM or spec.head_dim % 8:
            return f"head_dim {spec.head_dim}: must be a multiple of 8, at most {LARGEST_HEAD_DIM}"
        if spec.value_dim_value != spec.head_dim:
            return f"value_dim {spec.value_dim}: key and value must have one head size ({spec.head_dim})"
        options = {"softcap": spec.softcap, "alibi_slopes": spec.alibi_slopes, "sinks": spec.sinks}
        return next((f"{name}: it takes none" for name, value in options.items() if value is not None), None)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Weights in the type of the query for the second product; accumulators and split results in float32."""
        return {"p": spec.dtype, "accumulator": "float32", "partials": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        import torch
        from torch.nn.attention.varlen import AuxRequest, varlen_attn_out

        tables = batch.block_tables.contiguous()
        key_start = torch.tensor([0, *itertools.accumulate(batch.context_lens_host)], dtype=torch.int32)
        lengths = (batch.query_start, key_start.to(tables.device), batch.max_query_len, batch.max_context_len)
        options: dict[str, Any] = {
            "return_aux": AuxRequest(lse=True),
            "scale": spec.scale_value,
            "window_size": visible(spec),
            "enable_gqa": spec.group_size > 1,
            "seqused_k": batch.context_lens,
            "block_table": tables,
        }

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            out = torch.empty_like(query) if out is None else out
            result, lse = varlen_attn_out(out, query, pools.key, pools.value, *lengths, **options)
            # [heads, tokens], whatever its documentation says; a row without keys gets +inf, and no other row can.
            lse = lse.transpose(0, 1).masked_fill(lse.transpose(0, 1) == float("inf"), float("-inf"))
            return (result, lse) if spec.return_lse else result

        return launch


def visible(spec: AttentionSpec) -> tuple[int, int]:
    """Keys to the left and to the right, -1 for all. It is this pair that asks for a causal mask."""
    if spec.window is not None:
        return spec.window - 1, 0
    return (-1, 0) if spec.causal else (-1, -1)
