"""Gather through the block table, then torch's scaled dot product attention: the plain way, on any device.

The keys and values of a sequence are copied into a dense tensor in logical order, so that neither the numbers of the
blocks nor the size of the pool can change an output bit. Only slots that a sequence owns, and that some query row may
see, are read: what lies elsewhere (NaN, another sequence, a freed block) can't reach the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvproof_impls.contract import AttentionSpec, Copies, KVPools, Launch, PagedBatch
from kvproof_impls.torch_writes import copy_blocks, own_scales, write_cache

DTYPES = ("float16", "bfloat16", "float32")
KV_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e5m2", "int8")


@dataclass(frozen=True)
class Bucket:
    """Sequences of one query length, padded to the longest stretch of keys that one of them may see."""

    rows: Tensor
    """[num_seqs, query_len] rows of the query."""
    slots: Tensor
    """[num_seqs, num_keys] slot of each key in logical order; padding repeats the sequence's last key."""
    distance: Tensor
    """[num_seqs, query_len, num_keys] key position minus query position."""
    visible: Tensor | None
    """[num_seqs, query_len, num_keys] bool; None: everything is."""
    empty: Tensor | None
    """[num_seqs, query_len] bool, rows that see no key; None: there are none."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """What was gathered last, by name. Kept, since fresh pages from the system cost more than the copy itself."""


class TorchKernel:
    """Contract ``PagedKernel`` in plain torch, with every option that is not about storage formats."""

    pool_order = "NHD"
    max_context_len = None
    features = frozenset(
        [
            "lse",
            "empty_rows",
            "dirty_tail",
            "window",
            "softcap",
            "alibi",
            "sinks",
            "mla",
            "fp8",
            "int8",
            "head_scales",
            "token_scales",
            "out",
            "relabel_bitwise",
            "capacity_bitwise",
            "run_bitwise",
        ]
    )

    def unsupported(self, spec: AttentionSpec) -> str | None:
        for name, dtype, known in (("dtype", spec.dtype, DTYPES), ("kv_dtype", spec.kv_dtype or spec.dtype, KV_DTYPES)):
            if dtype not in known:
                return f"{name} {dtype!r}: one of {', '.join(known)} only"
        return None

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """SDPA rounds the weights to the query's type and goes by 512 keys on a CPU; the explicit path never rounds
        them, and leaves the whole sum to one matrix product, of which no tiling is promised."""
        tf32 = spec.dtype == "float32" and torch.get_float32_matmul_precision() != "highest"
        if needs_explicit_softmax(spec):
            return {"p": "float32", "tile": 1, "tf32": torch.get_float32_matmul_precision() != "highest"}
        return {"p": spec.dtype, "tile": 512, "tf32": tf32}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """Slot indices and masks, one bucket for each query length of the batch."""
        buckets = [make_bucket(spec, batch, length) for length in sorted(set(batch.query_lens_host) - {0})]
        attend = explicit_softmax if needs_explicit_softmax(spec) else fused_softmax

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            if out is None:
                out = query.new_empty(batch.num_tokens, spec.num_q_heads, spec.value_dim_value)
            lse = torch.empty(out.shape[:2], dtype=torch.float32, device=query.device)
            for bucket in buckets:
                run_bucket(spec, bucket, attend, query, pools, out, lse)
            return (out, lse) if spec.return_lse else out

        return launch

    def dense(self, spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One decode row a sequence without paging, the baseline of a benchmark: ``query`` [num_seqs, num_q_heads,
        head_dim], ``key`` and ``value`` [num_seqs, context_len, num_kv_heads, head_dim]."""
        rows = query.view(len(query), spec.num_kv_heads, spec.group_size, spec.head_dim)
        out = scaled_dot_product_attention(rows, key.transpose(1, 2), value.transpose(1, 2), scale=spec.scale_value)
        return out.reshape(len(query), spec.num_q_heads, -1)

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        """Store ``key`` and ``value`` [num_tokens, num_kv_heads, dim]; a slot of -1 is written nowhere."""
        write_cache(spec, key, value, pools, slot_mapping)

    def copy_blocks(self, pools: KVPools, copies: Copies) -> None:
        """Copy whole blocks; all sources are read before the first destination is written."""
        copy_blocks(pools, copies)


def needs_explicit_softmax(spec: AttentionSpec) -> bool:
    """SDPA returns no LSE on a CPU, knows neither caps nor sinks, and leaves its fast path for unequal head dims."""
    scaled = spec.k_scale != 1 or spec.v_scale != 1 or spec.kv_scales != "tensor"
    mixed = spec.kv_dtype not in (None, spec.dtype) or spec.value_dim_value != spec.head_dim
    options = (spec.softcap, spec.alibi_slopes, spec.sinks)
    return spec.return_lse or scaled or mixed or any(option is not None for option in options)


def make_bucket(spec: AttentionSpec, batch: PagedBatch, query_len: int) -> Bucket:
    """The sequences of ``batch`` whose query is ``query_len`` rows long."""
    device = batch.block_tables.device
    members = [i for i, length in enumerate(batch.query_lens_host) if length == query_len]
    context_lens = [batch.context_lens_host[i] for i in members]
    unseen = (query_len + spec.window - 1) if spec.window is not None else max(context_lens)
    starts = [max(0, length - unseen) for length in context_lens]
    num_keys = max(length - start for length, start in zip(context_lens, starts, strict=True))

    context = torch.tensor(context_lens, device=device)[:, None]
    position = torch.tensor(starts, device=device)[:, None] + torch.arange(num_keys, device=device)
    owned = position.minimum((context - 1).clamp(min=0))
    tables = batch.block_tables[members].long()
    # A sequence without tokens owns no slot: block 0 stands in, and its rows are emptied in the end.
    blocks = tables.gather(1, owned // spec.block_size).where(context > 0, 0) if num_keys else owned
    query_position = context - query_len + torch.arange(query_len, device=device)
    distance = position[:, None, :] - query_position[:, :, None]
    visible = (position < context)[:, None, :].expand_as(distance)
    if spec.causal:
        visible = visible & (distance <= 0)
    if spec.window is not None:
        visible = visible & (distance > -spec.window)
    empty = ~visible.any(-1)
    first = [sum(batch.query_lens_host[:i]) for i in members]
    rows = torch.tensor(first, device=device)[:, None] + torch.arange(query_len, device=device)
    return Bucket(
        rows,
        blocks * spec.block_size + owned % spec.block_size,
        distance,
        None if bool(visible.all()) else visible,
        empty if bool(empty.any()) else None,
    )


def run_bucket(
    spec: AttentionSpec, bucket: Bucket, attend: Any, query: Tensor, pools: KVPools, out: Tensor, lse: Tensor
) -> None:
    """Attend for the rows of one bucket and put the results where they belong in ``out`` and ``lse``."""
    num_seqs, query_len = bucket.rows.shape
    if bucket.slots.shape[1] == 0:
        out[bucket.rows] = 0
        lse[bucket.rows] = -torch.inf if spec.sinks is None else torch.tensor(spec.sinks, device=lse.device)
        return
    heads = (num_seqs, query_len, spec.num_kv_heads, spec.group_size)
    grouped = query[bucket.rows].view(*heads, spec.head_dim).permute(0, 2, 3, 1, 4)
    key = gather(pools.key, bucket.slots, bucket.buffers, "key")
    value = key[..., : spec.value_dim_value] if spec.mla else gather(pools.value, bucket.slots, bucket.buffers, "value")
    if spec.kv_scales != "tensor":
        place = (bucket.slots // spec.block_size, bucket.slots % spec.block_size)
        key = key.float() * own_scales(pools.key_scale, place)
        value = value.float() * own_scales(pools.key_scale if spec.mla else pools.value_scale, place)
    result, result_lse = attend(spec, bucket, grouped, key.transpose(1, 2), value.transpose(1, 2))
    result = result.permute(0, 3, 1, 2, 4).reshape(num_seqs, query_len, spec.num_q_heads, -1)
    if bucket.empty is not None:
        result = result.masked_fill(bucket.empty[..., None, None], 0)
    out[bucket.rows] = result.to(out.dtype)
    if result_lse is not None:
        lse[bucket.rows] = result_lse.permute(0, 3, 1, 2).reshape(num_seqs, query_len, spec.num_q_heads)


def gather(pool: Tensor, slots: Tensor, buffers: dict[str, Tensor], name: str) -> Tensor:
    """``pool`` [num_blocks, block_size, num_kv_heads, head_dim] at ``slots`` [num_seqs, num_keys]."""
    block_size = pool.shape[1]
    if pool.stride(0) != block_size * pool.stride(1):  # guard zones between blocks, or heads stored before tokens
        return pool[slots // block_size, slots % block_size]
    if name not in buffers:
        buffers[name] = pool.new_empty(slots.numel(), *pool.shape[2:])
    flat = torch.index_select(pool.flatten(0, 1), 0, slots.flatten(), out=buffers[name])
    return flat.view(*slots.shape, *pool.shape[2:])


def fused_softmax(
    spec: AttentionSpec, bucket: Bucket, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, None]:
    """``query`` [num_seqs, num_kv_heads, group_size, query_len, head_dim]; ``key`` and ``value``
    [num_seqs, num_kv_heads, num_keys, head_dim]. The group is made part of the rows: ``enable_gqa`` is 9 times slower
    in bfloat16 with one query row."""
    num_seqs, num_kv_heads, group_size, query_len, head_dim = query.shape
    mask = bucket.visible
    if mask is not None:
        mask = mask[:, None].expand(-1, group_size, -1, -1).reshape(num_seqs, 1, group_size * query_len, -1)
    rows = query.reshape(num_seqs, num_kv_heads, group_size * query_len, head_dim)
    out = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=spec.scale_value)
    return out.view(num_seqs, num_kv_heads, group_size, query_len, -1), None


def explicit_softmax(
    spec: AttentionSpec, bucket: Bucket, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The same in float32, step by step, for what SDPA doesn't offer; also returns the LSE
    [num_seqs, num_kv_heads, group_size, query_len]."""
    num_seqs, num_kv_heads, group_size, query_len, head_dim = query.shape
    per_head = (1, num_kv_heads, group_size, 1, 1)
    rows = query.reshape(num_seqs, num_kv_heads, group_size * query_len, head_dim).float()
    scores = rows @ key.float().transpose(-1, -2) * (spec.scale_value * spec.k_scale)
    scores = scores.view(num_seqs, num_kv_heads, group_size, query_len, -1)
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if spec.alibi_slopes is not None:
        scores = scores + scores.new_tensor(spec.alibi_slopes).view(per_head) * bucket.distance[:, None, None]
    if bucket.visible is not None:
        scores = scores.masked_fill(~bucket.visible[:, None, None], -torch.inf)
    highest = scores.amax(-1, keepdim=True)
    if spec.sinks is not None:
        sinks = scores.new_tensor(spec.sinks).view(per_head)
        highest = highest.maximum(sinks)
    highest = highest.masked_fill(highest == -torch.inf, 0)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    if spec.sinks is not None:
        total = total + torch.exp(sinks - highest)
    weighted = weights.flatten(2, 3) @ value.float()
    out = weighted.view(num_seqs, num_kv_heads, group_size, query_len, -1) / total * spec.v_scale
    return out, (highest + total.log()).squeeze(-1)
