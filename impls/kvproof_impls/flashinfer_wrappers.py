"""FlashInfer's paged wrappers: decode for one query row a sequence, prefill for all else, append for the cache write.

Written against flashinfer-python 0.7.2. The library is imported when a launch is planned or a cache is written, never
before. What each back end takes is in ``flashinfer_backends``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kvproof_impls.flashinfer_backends import (
    BACKENDS,
    CUDA_CORE_GROUPS,
    Backend,
    arithmetic,
    model_options,
    unsupported,
)
from kvproof_impls.flashinfer_pages import Workspaces, page_indices, pages_of, query_start

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch


@dataclass(frozen=True)
class WrapperLaunch:
    """A planned wrapper; ``plan(..., reuse=launch)`` plans the same wrapper, with its buffers, anew."""

    wrapper: Any
    spec: AttentionSpec
    layout: str
    decode: bool
    arguments: tuple[Any, ...] = ()
    """What a wrapper of a variant takes by position."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
        pages = pages_of(pools, self.layout)
        options = {"out": out, "return_lse": self.spec.return_lse, **self.options}
        result = self.wrapper.run(query, pages, *self.arguments, **options)
        if not self.spec.return_lse:
            return result
        attended, lse_base_2 = result
        return attended, lse_base_2 * math.log(2)


class FlashInferKernel:
    """Contract ``PagedKernel`` over ``flashinfer``; it offers no block copy of its own."""

    def __init__(self, backend: Backend = BACKENDS["auto"]) -> None:
        self.backend = backend
        self.pool_order = backend.layout
        self.features = backend.features
        self._workspaces = Workspaces()

    def unsupported(self, spec: AttentionSpec) -> str | None:
        return unsupported(spec, self.backend)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        return arithmetic(spec)

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> WrapperLaunch:
        by_variant = spec.sinks is not None and self.backend.sinks_by == "wrapper"
        decode = all(length == 1 for length in batch.query_lens_host) and not by_variant
        wrapper = self._wrapper(spec, batch, decode, reuse)
        (plan_decode if decode else plan_prefill)(wrapper, spec, batch)
        scales = {} if spec.kv_dtype in (None, spec.dtype) else {"k_scale": spec.k_scale, "v_scale": spec.v_scale}
        launch = partial(WrapperLaunch, wrapper, spec, self.backend.layout, decode)
        if spec.sinks is None:
            return launch(options=scales)
        sinks = sink_logits(spec, batch.block_tables.device)
        if not by_variant:
            return launch(options={**scales, "sinks": sinks})
        # What the variant takes by position replaces the scale of the plan, which is where run folds in k_scale.
        values = {name: scales[name] for name in scales if name == "v_scale"}
        return launch(arguments=(sinks, spec.scale_value * spec.k_scale), options=values)

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """Append to the whole pool seen as one sequence, whose token at position p lies in slot p."""
        import torch
        from flashinfer import append_paged_kv_cache

        kept = slot_mapping >= 0
        slots = slot_mapping[kept].to(torch.int32)
        num_blocks = pools.key.shape[0]
        append_paged_kv_cache(
            codes(key[kept], spec.k_scale, pools.key),
            codes(value[kept], spec.v_scale, pools.value),
            torch.zeros_like(slots),
            slots,
            pages_of(pools, self.backend.layout),
            torch.arange(num_blocks, dtype=torch.int32, device=slots.device),
            torch.tensor([0, num_blocks], dtype=torch.int32, device=slots.device),
            torch.tensor([spec.block_size], dtype=torch.int32, device=slots.device),
            kv_layout=self.backend.layout,
        )

    def _wrapper(self, spec: AttentionSpec, batch: PagedBatch, decode: bool, reuse: Launch | None) -> Any:
        import flashinfer

        if isinstance(reuse, WrapperLaunch) and (reuse.spec, reuse.decode) == (spec, decode):
            return reuse.wrapper
        workspace = self._workspaces.on(batch.block_tables.device)
        name, layout = self.backend.name, self.backend.layout
        if decode:
            cores = self.backend.tensor_cores or spec.group_size not in CUDA_CORE_GROUPS
            make: Callable[..., Any] = flashinfer.BatchDecodeWithPagedKVCacheWrapper
            return make(workspace, layout, use_tensor_cores=cores, backend=name)
        if spec.sinks is None or self.backend.sinks_by == "run":
            return flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, layout, backend=name)
        options = model_options(spec)
        dims = {"head_dim_qk": spec.head_dim, "head_dim_vo": spec.head_dim}
        types = {key: options[key] for key in ("q_data_type", "kv_data_type", "window_left")}
        make = flashinfer.BatchAttentionWithAttentionSinkWrapper
        return make(workspace, layout, backend=name, **dims, **types)


def plan_decode(wrapper: Any, spec: AttentionSpec, batch: PagedBatch) -> None:
    pages = page_indices(batch, spec.block_size)
    heads = (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.block_size)
    wrapper.plan(pages.indptr, pages.indices, pages.last_page_len, *heads, **model_options(spec))


def plan_prefill(wrapper: Any, spec: AttentionSpec, batch: PagedBatch) -> None:
    pages = page_indices(batch, spec.block_size)
    heads = (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.block_size)
    lengths = (query_start(batch), pages.indptr, pages.indices, pages.last_page_len)
    wrapper.plan(*lengths, *heads, causal=spec.causal, **model_options(spec))


def sink_logits(spec: AttentionSpec, device: Any) -> Tensor:
    """[num_q_heads] float32."""
    import torch

    return torch.tensor(spec.sinks, dtype=torch.float32, device=device)


def codes(rows: Tensor, scale: float, pool: Tensor) -> Tensor:
    """Append stores what it is given: that of an 8-bit pool is made by its callers, here by torch, saturating."""
    import torch

    if pool.dtype == rows.dtype:
        return rows
    largest = torch.finfo(pool.dtype).max
    return (rows.float() / scale).clamp(-largest, largest).to(pool.dtype)


auto, fa2, fa2_hnd, fa3, trtllm_gen, cudnn = (partial(FlashInferKernel, backend) for backend in BACKENDS.values())
