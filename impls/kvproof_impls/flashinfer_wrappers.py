"""FlashInfer's paged wrappers: decode for one query row a sequence, prefill for all else, append for the cache write.

Written against flashinfer-python 0.7. The library is imported when a launch is planned or a cache is written, never
before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

HEAD_DIMS = (64, 128, 256)
CUDA_CORE_GROUPS = (1, 2, 3, 4, 6, 8, 16)
"""Query heads a key head for which the decode kernel without tensor cores is compiled."""
WORKSPACE_BYTES = 128 * 2**20


@dataclass(frozen=True)
class PageIndices:
    """The block tables in compressed rows. int32, all but ``indices`` on the host, where planning needs them."""

    indptr: Tensor
    """[num_seqs + 1] where each sequence's pages begin in ``indices``."""
    indices: Tensor
    """[num_pages] physical blocks, only those that hold tokens."""
    last_page_len: Tensor
    """[num_seqs] tokens in each sequence's last page, 1 to block_size."""


@dataclass(frozen=True)
class WrapperLaunch:
    """A planned wrapper; ``plan(..., reuse=launch)`` plans the same wrapper, with its buffers, anew."""

    wrapper: Any
    spec: AttentionSpec
    decode: bool

    def __call__(self, query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
        result = self.wrapper.run(query, (pools.key, pools.value), out=out, return_lse=self.spec.return_lse)
        if not self.spec.return_lse:
            return result
        attended, lse_base_2 = result
        return attended, lse_base_2 * math.log(2)


class FlashInferKernel:
    """Contract ``PagedKernel`` over ``flashinfer``; it offers no block copy of its own."""

    pool_order = "NHD"
    features = frozenset(
        ["capacity_bitwise", "dirty_tail", "lse", "out", "relabel_bitwise", "run_bitwise", "softcap", "window"]
    )

    def __init__(self) -> None:
        self._workspaces: dict[Any, Tensor] = {}

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in ("float16", "bfloat16"):
            return f"dtype {spec.dtype!r}: its kernels take a float16 or bfloat16 query"
        if spec.kv_dtype not in (None, spec.dtype):
            return f"kv_dtype {spec.kv_dtype!r}: this adapter stores K and V in the type of the query ({spec.dtype})"
        if spec.head_dim not in HEAD_DIMS:
            return f"head_dim {spec.head_dim}: compiled for {', '.join(map(str, HEAD_DIMS))} only"
        if spec.value_dim_value != spec.head_dim:
            return f"value_dim {spec.value_dim}: the decode wrapper takes one head size for K and V ({spec.head_dim})"
        if spec.k_scale != 1 or spec.v_scale != 1:
            return "k_scale, v_scale: this adapter passes none, they belong to quantised pools"
        if spec.alibi_slopes is not None:
            return "alibi_slopes: its ALiBi mode computes slopes of its own and takes none"
        if spec.sinks is not None:
            return "sinks: only some of its backends take them"
        return None

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Tensor cores round the weights to the query's type; partial results of splits stay in float32."""
        return {"p": spec.dtype, "accumulator": "float32", "partials": "float32"}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> WrapperLaunch:
        decode = all(length == 1 for length in batch.query_lens_host)
        pages = page_indices(batch, spec.block_size)
        wrapper = self._wrapper(spec, batch, decode, reuse)
        (plan_decode if decode else plan_prefill)(wrapper, spec, batch, pages)
        return WrapperLaunch(wrapper, spec, decode)

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """Append to the whole pool seen as one sequence, whose token at position p lies in slot p."""
        import torch
        from flashinfer import append_paged_kv_cache

        kept = slot_mapping >= 0
        slots = slot_mapping[kept].to(torch.int32)
        num_blocks = pools.key.shape[0]
        append_paged_kv_cache(
            key[kept],
            value[kept],
            torch.zeros_like(slots),
            slots,
            (pools.key, pools.value),
            torch.arange(num_blocks, dtype=torch.int32, device=slots.device),
            torch.tensor([0, num_blocks], dtype=torch.int32, device=slots.device),
            torch.tensor([spec.block_size], dtype=torch.int32, device=slots.device),
            kv_layout="NHD",
        )

    def _wrapper(self, spec: AttentionSpec, batch: PagedBatch, decode: bool, reuse: Launch | None) -> Any:
        import flashinfer

        if isinstance(reuse, WrapperLaunch) and (reuse.spec, reuse.decode) == (spec, decode):
            return reuse.wrapper
        workspace = self._workspace(batch.block_tables.device)
        if decode:
            tensor_cores = spec.group_size not in CUDA_CORE_GROUPS
            return flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)
        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")

    def _workspace(self, device: Any) -> Tensor:
        """One a device, shared by all launches: they run one after the other."""
        import torch

        if device not in self._workspaces:
            self._workspaces[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._workspaces[device]


def page_indices(batch: PagedBatch, block_size: int) -> PageIndices:
    """The pages that hold tokens, gathered from the tables at places worked out on the host."""
    import torch

    context = torch.tensor(batch.context_lens_host, dtype=torch.int64)
    num_pages = (context + block_size - 1) // block_size
    indptr = torch.tensor([0, *itertools.accumulate(num_pages.tolist())])
    row = torch.repeat_interleave(torch.arange(len(context)), num_pages)
    column = torch.arange(len(row)) - indptr[row]
    device = batch.block_tables.device
    indices = batch.block_tables[row.to(device), column.to(device)]
    last_page_len = (context - 1) % block_size + 1
    return PageIndices(indptr.to(torch.int32), indices.to(torch.int32), last_page_len.to(torch.int32))


def model_options(spec: AttentionSpec) -> dict[str, Any]:
    """What both wrappers take for the options of a model; their default type of the query is float16."""
    import torch

    dtype = getattr(torch, spec.dtype)
    return {
        "window_left": -1 if spec.window is None else spec.window - 1,
        "logits_soft_cap": spec.softcap or 0.0,
        "sm_scale": spec.scale_value,
        "q_data_type": dtype,
        "kv_data_type": dtype,
    }


def plan_decode(wrapper: Any, spec: AttentionSpec, batch: PagedBatch, pages: PageIndices) -> None:
    heads = (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.block_size)
    wrapper.plan(pages.indptr, pages.indices, pages.last_page_len, *heads, **model_options(spec))


def plan_prefill(wrapper: Any, spec: AttentionSpec, batch: PagedBatch, pages: PageIndices) -> None:
    import torch

    query_start = torch.tensor([0, *itertools.accumulate(batch.query_lens_host)], dtype=torch.int32)
    heads = (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.block_size)
    wrapper.plan(
        query_start,
        pages.indptr,
        pages.indices,
        pages.last_page_len,
        *heads,
        causal=spec.causal,
        **model_options(spec),
    )
