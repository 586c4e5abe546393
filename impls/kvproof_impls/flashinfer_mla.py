"""FlashInfer's latent attention: one pool, whose first 512 dims are the values and whose last 64 carry the position.

Written against flashinfer-python 0.7.2 (``mla/_batch_mla``): the form with ``MLAPlanMetadata``, packed query and pool,
back ends FA2 and FA3, LSE to base e. The library is imported when a launch is planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kvproof_impls.flashinfer_pages import Workspaces, page_indices, query_start

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch


class FlashInferMlaKernel:
    """Contract ``PagedKernel`` over ``BatchMLAPagedAttentionWrapper``. Its own append knows 512 + 64 dims in two pools,
    so that there is no cache write here."""

    pool_order = "NHD"
    features = frozenset({"capacity_bitwise", "lse", "mla", "out", "relabel_bitwise", "run_bitwise"})

    def __init__(self, backend: str = "auto") -> None:
        self.backend = backend
        self._workspaces = Workspaces()

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if not spec.mla:
            return "mla: it attends to latent pools only"
        if spec.num_kv_heads != 1:
            return f"num_kv_heads {spec.num_kv_heads}: its pool has no axis of heads"
        if spec.dtype not in ("float16", "bfloat16"):
            return f"dtype {spec.dtype!r}: its kernels take a float16 or bfloat16 query"
        if spec.kv_dtype not in (None, spec.dtype) or spec.k_scale != 1:
            return f"kv_dtype {spec.kv_dtype!r}: this adapter stores the pool in the type of the query"
        if spec.value_dim_value % 128 or (spec.head_dim - spec.value_dim_value) % 64 or spec.value_dim_value > 512:
            return f"{spec.head_dim} dims, {spec.value_dim} of them values: a multiple of 128 up to 512, and one of 64"
        asked = {"window": spec.window, "softcap": spec.softcap, "alibi_slopes": spec.alibi_slopes, "sinks": spec.sinks}
        return next((f"{name}: FA2 and FA3 take none here" for name, value in asked.items() if value is not None), None)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """``mla.cuh`` rounds the weights to the type of the pool before the second product; partials are float32."""
        return {"p": spec.dtype, "accumulator": "float32", "partials": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        import torch
        from flashinfer.mla import BatchMLAPagedAttentionWrapper, MLAPlanMetadata

        pages, dtype = page_indices(batch, spec.block_size), getattr(torch, spec.dtype)
        lengths = torch.tensor(batch.context_lens_host, dtype=torch.int32)
        workspace = self._workspaces.on(batch.block_tables.device)
        wrapper = BatchMLAPagedAttentionWrapper(workspace, backend=self.backend)
        wrapper.plan(
            metadata=MLAPlanMetadata.csr(query_start(batch), pages.indptr, pages.indices, lengths),
            num_heads=spec.num_q_heads,
            head_dim_ckv=spec.value_dim_value,
            head_dim_kpe=spec.head_dim - spec.value_dim_value,
            page_size=spec.block_size,
            causal=spec.causal,
            sm_scale=spec.scale_value,
            q_data_type=dtype,
            kv_data_type=dtype,
            query_layout="packed",
            kv_cache_layout="packed",
            lse_mode="basee" if spec.return_lse else "none",
        )

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            lse = {"return_lse": True, "return_lse_base_on_e": True} if spec.return_lse else {}
            return wrapper.run(query=query, kv_cache=pools.key.squeeze(2), out=out, **lse)

        return launch


fa2 = partial(FlashInferMlaKernel, "fa2")
fa3 = partial(FlashInferMlaKernel, "fa3")
