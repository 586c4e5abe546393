"""The attention of transformers' continuous batching on what is no flash-attention: indices, a packed mask, SDPA.

Read in transformers 5.24.0: generation/continuous_batching/cache_allocators/full_attention.py (``get_read_indices``,
``get_write_indices``, ``update``), utils.py (``build_attention_mask``), integrations/sdpa_attention.py and
eager_paged.py. All sequences of a batch stand side by side in one: every query is scored against the keys of all, and a
mask of the most negative number, block by block on the diagonal, leaves each its own.

A step's keys and values come with it and are written into the cache before they are read back; here they are read from
the pools, so that they are written back as they are. In the library pages of keys and of values take turns in one
tensor; indices count rows of it, and its views differ by their start alone, so that two pools serve as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

DTYPES = ("float16", "bfloat16", "float32")


class TransformersKernel:
    """Contract ``PagedKernel`` with ``attn_implementation="sdpa"``. Not declared: an LSE, a soft cap (an error in
    sdpa_attention.py), ALiBi, sinks; a window, since layers with one keep a ring of slots and no block table
    (sliding_attention.py)."""

    pool_order = "NHD"
    max_context_len = 1100
    """The mask has a row for each query and a column for each key of the whole batch."""
    features = frozenset(["out", "fused_write", "dirty_tail", "relabel_bitwise", "capacity_bitwise", "run_bitwise"])

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in DTYPES or spec.kv_dtype not in (None, spec.dtype):
            return f"dtype {spec.dtype}, kv_dtype {spec.kv_dtype}: the cache has the type of the model"
        if spec.value_dim_value != spec.head_dim:
            return f"value_dim {spec.value_dim}: key and value share one tensor, and its head_dim"
        if (spec.k_scale, spec.v_scale, spec.kv_scales) != (1, 1, "tensor"):
            return "scales of keys and values"
        return None if spec.causal else "attention that is not causal"

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """torch's SDPA rounds the weights to the query's type and goes by 512 keys on a CPU."""
        return {"p": spec.dtype, "tile": 512}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """Index tensors and mask, made by the library from the block tables.

        Raises:
            ValueError: an unsupported spec, or query rows before position 0.
        """
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"transformers does not support {reason}")
        cache = page_indices(spec, batch)
        mask, module, attend = packed_mask(spec, batch), attention_module(spec), self.attention()

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            cache._kv_token_views = {0: (rows(pools.key, "key"), rows(pools.value, "value"))}
            new = (view.index_select(0, cache.write_index) for view in cache._kv_token_views[0])
            key, value = cache.update(*new, 0, cache.read_index, cache.write_index)
            packed = (each.transpose(0, 1)[None] for each in (query, key, value))
            result: Tensor = attend(module, *packed, mask, scaling=spec.scale_value)[0][0]
            return result if out is None else out.copy_(result)

        return launch

    def dense(self, spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One decode row a sequence without paging, as over a StaticCache: ``query`` [num_seqs, num_q_heads, head_dim],
        ``key`` and ``value`` [num_seqs, context_len, num_kv_heads, head_dim]."""
        caches = (cache.transpose(1, 2) for cache in (key, value))
        out: Tensor = self.attention()(
            attention_module(spec), query[:, :, None], *caches, None, scaling=spec.scale_value
        )[0]
        return out[:, 0]

    def attention(self) -> Callable[..., Any]:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """As ``update`` does. Padding goes to a sector that nobody reads there, and nowhere here."""
        kept = slot_mapping >= 0
        for name, pool, new in (("key", pools.key, key), ("value", pools.value, value)):
            rows(pool, name).index_copy_(0, slot_mapping[kept], new[kept])


class EagerTransformersKernel(TransformersKernel):
    """The same with ``attn_implementation="paged|eager"``."""

    features = TransformersKernel.features | {"sinks"}

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype != "float32":
            return f"dtype {spec.dtype}: scores are stored in it before they are scaled, which arithmetic can't declare"
        return super().unsupported(spec)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """All of it float32; of the order in which a matrix product sums nothing is promised."""
        return {"p": "float32", "tile": 1}

    def attention(self) -> Callable[..., Any]:
        from transformers.integrations.eager_paged import eager_paged_attention_forward

        return eager_paged_attention_forward


def page_indices(spec: AttentionSpec, batch: PagedBatch) -> Any:
    """The library's allocator without its bookkeeping: block tables in, ``read_index`` and ``write_index`` out."""
    import torch
    from transformers.generation.continuous_batching.cache_allocators import FullAttentionCacheAllocator

    seqs = list(zip(batch.context_lens_host, batch.query_lens_host, strict=True))
    if any(query_len > context_len for context_len, query_len in seqs):
        raise ValueError(f"(context, query) lengths {seqs}: transformers knows no query rows before position 0")
    cache = object.__new__(FullAttentionCacheAllocator)
    cache.tokens_per_page = cache.block_physical_stride = spec.block_size
    cache.block_table = {str(i): table for i, table in enumerate(batch.block_tables.tolist())}
    reads: list[int] = []
    writes: list[int] = []
    for i, (context_len, query_len) in enumerate(seqs):
        lengths = (str(i), context_len - query_len, query_len)
        reads += cache.get_read_indices(*lengths)
        writes += cache.get_write_indices(*lengths) if query_len else []
    cache.read_index, cache.write_index = torch.tensor(reads), torch.tensor(writes)
    return cache


def attention_module(spec: AttentionSpec) -> SimpleNamespace:
    """What the functions ask of a model's attention layer."""
    import torch

    module = SimpleNamespace(num_key_value_groups=spec.group_size)
    if spec.sinks is not None:
        module.sinks = torch.tensor(spec.sinks, dtype=getattr(torch, spec.dtype))
    return module


def packed_mask(spec: AttentionSpec, batch: PagedBatch) -> Tensor:
    """[1, 1, query rows of all, keys of all], to be added to the scores."""
    import torch
    from transformers.generation.continuous_batching.utils import build_attention_mask

    starts = [
        [sum(lens[:i]) for i in range(len(lens) + 1)] for lens in (batch.query_lens_host, batch.context_lens_host)
    ]
    dtype = getattr(torch, spec.dtype)
    mask = torch.full((1, 1, starts[0][-1], starts[1][-1]), torch.finfo(dtype).min, dtype=dtype)
    build_attention_mask(mask, *starts)
    return mask


def rows(pool: Tensor, name: str) -> Tensor:
    """[slot, num_kv_heads, head_dim].

    Raises:
        ValueError: blocks that do not follow one another without a gap.
    """
    if not pool.is_contiguous():
        raise ValueError(f"the {name} pool has strides {pool.stride()}: blocks must be packed, in the order NHD")
    return pool.flatten(0, 1)
