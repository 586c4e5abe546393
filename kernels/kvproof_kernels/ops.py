"""The kernels as torch operators: ``torch.ops.kvproof.paged_attention``, ``write_cache`` and ``merge``.

``torch.compile`` takes them without looking inside: each has a fake kernel, which says what comes out of what goes in.
Arguments are plain tensors and numbers. Planning stays outside of the compiled region, being work of the host on
lengths that change at every step; what it yields goes in as tensors and numbers (``arguments``):

    attend = PagedAttention(geometry, block_tables, context_lens, query_lens)
    out, lse = torch.ops.kvproof.paged_attention(query, key_pool, value_pool, *arguments(attend))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvproof_kernels import cache_write, combine
from kvproof_kernels.attention import Terms
from kvproof_kernels.attention import paged_attention as run_items
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.launch import backend_of
from kvproof_kernels.plan import PagedAttention
from kvproof_kernels.tensor_checks import check_dims
from kvproof_kernels.tiles import Form, tile_for
from kvproof_kernels.validation import check_launch, check_pools
from kvproof_kernels.work import Work


def arguments(attend: PagedAttention) -> tuple[Any, ...]:
    """What ``paged_attention`` takes behind the pools, for a planned batch without scales of its pools."""
    terms, work, form, chosen = attend.terms, attend.work, attend.geometry.form, attend.configuration
    return (
        *(attend.block_tables, work.items, work.positions, work.partial_start, work.num_partials),
        *(terms.key_scales, terms.value_scales, terms.slopes, terms.sinks, terms.scale, terms.softcap, terms.window),
        [chosen.block_m, chosen.block_n, chosen.num_warps, chosen.num_stages],
        *(form.options, form.mla, form.token_scales),
    )


@torch.library.custom_op("kvproof::paged_attention", mutates_args=())
def paged_attention(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    items: Tensor,
    positions: Tensor,
    partial_start: Tensor,
    num_partials: int,
    key_scales: Tensor,
    value_scales: Tensor,
    slopes: Tensor,
    sinks: Tensor,
    scale: float,
    softcap: float,
    window: int,
    tile: list[int],
    options: bool,
    mla: bool,
    token_scales: bool,
) -> tuple[Tensor, Tensor]:
    """Attention of a planned batch: ``attention.paged_attention`` with tensors and numbers for its dataclasses.

    Returns:
        out [num_tokens, num_q_heads, value_dim] of query's dtype and lse [num_tokens, num_q_heads] float32.

    Raises:
        ValueError, TypeError: query or pools are not what was planned for; the message names the tensor and its shape.
    """
    check_dims("query", query, 3)
    check_pools(key_pool, value_pool)
    out, lse = _results(query, value_pool)
    geometry = Geometry(
        *(len(slopes), key_scales.shape[-1], key_pool.shape[3], value_pool.shape[3], key_pool.shape[1]),
        *(query.dtype, key_pool.dtype, scale),
        kv_scales="token" if token_scales else "tensor",
        mla=mla,
    )
    if (reason := geometry.unsupported(query.device)) is not None:
        raise ValueError(f"the triton kernels do not support {reason}")
    check_launch(geometry, len(positions), query, key_pool, value_pool, out, block_tables)
    form = Form(query.shape[2], value_pool.shape[3], query.dtype, key_pool.dtype, options, mla, token_scales)
    chosen = tile_for("many", form, backend_of(query.device))
    block_m, block_n, num_warps, num_stages = tile
    num_rows = max(1, num_partials)
    partials = (
        query.new_empty((num_rows, *out.shape[1:]), dtype=torch.float32),
        query.new_empty((num_rows, out.shape[1]), dtype=torch.float32),
    )
    run_items(
        *(query, key_pool, value_pool, block_tables),
        Work(items, positions, partial_start, num_partials),
        Terms(scale, softcap, window, slopes, sinks, key_scales, value_scales),
        replace(chosen, block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages),
        *(out, lse, partials),
    )
    return out, lse


@paged_attention.register_fake
def _(query: Tensor, key_pool: Tensor, value_pool: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return _results(query, value_pool)


def _results(query: Tensor, value_pool: Tensor) -> tuple[Tensor, Tensor]:
    out = query.new_empty((*query.shape[:2], value_pool.shape[3]))
    return out, query.new_empty(query.shape[:2], dtype=torch.float32)


@torch.library.custom_op("kvproof::write_cache", mutates_args=("key_pool", "value_pool", "key_scales", "value_scales"))
def write_cache(
    key: Tensor,
    value: Tensor | None,
    key_pool: Tensor,
    value_pool: Tensor | None,
    slot_mapping: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    """``cache_write.write_cache``: one scale serves the whole tensor, or ``key_scales`` a head or a token."""
    cache_write.write_cache(
        *(key, value, key_pool, value_pool, slot_mapping),
        key_scale=key_scale if key_scales is None else key_scales,
        value_scale=value_scale if value_scales is None else value_scales,
    )


@torch.library.custom_op("kvproof::merge", mutates_args=())
def merge(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """``combine.merge``: attention over a union of disjoint sets of tokens, from attention over each of them."""
    return combine.merge(outs, lses)


@merge.register_fake
def _(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    return outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])
