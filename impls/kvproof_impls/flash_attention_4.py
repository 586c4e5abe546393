"""FlashAttention 4 through its page table: ``flash_attn.cute.flash_attn_varlen_func``, compiled for the GPU at hand.

Written against flash-attn-4 4.0.0b36 (``interface.py``). Its folder is that of flash-attn 2, so that the two can't be
in one environment. The library is imported when a launch is planned, never before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

HOPPER, BLACKWELL = 9, 10


class FlashAttention4Kernel:
    """Contract ``PagedKernel`` over the ``flash-attn-4`` package; it offers no cache write and no block copy.

    Not declared: ``dirty_tail`` (where a page is a tile, the rows past a context must be finite: its documentation of
    ``page_table``), ``batch_bitwise`` and ``capacity_bitwise`` (the tile depends on the longest lengths of the batch).

    Args:
        capability: major number of the compute capability that is compiled for; None: the device's.
    """

    pool_order = "NHD"
    features = frozenset(["empty_rows", "lse", "mla", "relabel_bitwise", "run_bitwise", "sinks", "softcap", "window"])

    def __init__(self, capability: int | None = None) -> None:
        self.capability = capability

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in ("float16", "bfloat16"):
            return f"dtype {spec.dtype!r}: its matrix products take float16, bfloat16 and 8-bit queries only"
        if spec.kv_dtype not in (None, spec.dtype) or spec.k_scale != 1 or spec.v_scale != 1:
            return f"kv_dtype {spec.kv_dtype!r}: query, key and value must have one type ({spec.dtype})"
        if spec.alibi_slopes is not None:
            return "alibi_slopes: it takes none, but a score_mod, which is another kernel"
        capability = self.capability or device_capability()
        return _unsupported_latent(spec, capability) if spec.mla else _unsupported_dims(spec, capability)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """``flash_fwd_sm90.py``, ``flash_fwd_sm100.py``: weights in the type of the query, float32 else. On sm_100 a
        maximum may lag, and weights reach 2^8: their rounding is relative, as the bound has it."""
        return {"p": spec.dtype, "accumulator": "float32", "partials": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        import torch
        from flash_attn.cute import flash_attn_varlen_func

        device, sinks = batch.block_tables.device, spec.sinks
        options = {
            "cu_seqlens_q": batch.query_start,
            "max_seqlen_q": batch.max_query_len,
            "max_seqlen_k": batch.max_context_len,
            "seqused_k": batch.context_lens,
            "page_table": batch.block_tables.contiguous(),
            "softmax_scale": spec.scale_value,
            "causal": spec.causal,
            "window_size": (None, None) if spec.window is None else (spec.window - 1, 0),
            "softcap": spec.softcap or 0.0,
            "learnable_sink": None if sinks is None else torch.tensor(sinks, dtype=torch.float32, device=device),
            "return_lse": True,
        }

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            result, lse = flash_attn_varlen_func(**operands(spec, query, pools), **options)
            if out is not None:
                result = out.copy_(result)
            # With qv the heads come last already.
            return (result, lse if spec.mla else lse.transpose(0, 1)) if spec.return_lse else result

        return launch


def operands(spec: AttentionSpec, query: Tensor, pools: KVPools) -> dict[str, Tensor]:
    """Packed queries, and the pools as they are; of a latent pool, views: K is what is not V."""
    if not spec.mla:
        return {"q": query, "k": pools.key, "v": pools.value}
    dims = [spec.value_dim_value, spec.head_dim - spec.value_dim_value]
    (qv, q), (value, key) = query.split(dims, -1), pools.key.split(dims, -1)
    return {"q": q, "qv": qv, "k": key, "v": value}


def device_capability() -> int:
    """Major number; without a device Hopper's, the narrower in what it takes of latent attention."""
    import torch

    return int(torch.cuda.get_device_capability()[0]) if torch.cuda.is_available() else HOPPER


def _unsupported_dims(spec: AttentionSpec, capability: int) -> str | None:
    dims = (spec.head_dim, spec.value_dim_value)
    if any(dim % 8 or not 8 <= dim <= 256 for dim in dims):
        return f"head_dim {spec.head_dim}, value_dim {spec.value_dim}: multiples of 8, at most 256"
    if capability >= BLACKWELL and max(dims) > 128 and dims not in ((192, 128), (256, 256)):
        return f"head_dim {spec.head_dim}, value_dim {spec.value_dim}: above 128 only 192 with 128, and 256"
    return None


def _unsupported_latent(spec: AttentionSpec, capability: int) -> str | None:
    if capability < BLACKWELL:
        return "mla: qv is a kernel for compute capability 10 and 11"
    if (spec.head_dim, spec.value_dim_value) != (576, 512):
        return f"{spec.head_dim} dims, {spec.value_dim} of them values: qv takes 576 with 512 only"
    options = {"window": spec.window, "softcap": spec.softcap, "sinks": spec.sinks}
    return next((f"{name}: not together with qv" for name, value in options.items() if value is not None), None)
