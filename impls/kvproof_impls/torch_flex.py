"""FlexAttention over pages, compiled: the block table becomes a block mask of physical pages, and nothing is gathered.

Read in torch 2.13.0: nn/attention/flex_attention.py and, for the C++ that inductor writes on a CPU,
_inductor/kernel/flex/flex_cpu.py and _inductor/codegen/cpp_flex_attention_template.py. A block of the mask is a page,
as in nn/attention/experimental/_paged_attention.py. A table of the mask is as wide as the pool, for every sequence.

Queries are padded to the longest of the batch, and the batch to two rows, so that lengths, pages and sequences stay
symbols of one compilation: a model costs one for decode and one for all else. What the mask itself looks up is padded
to a few sizes, since the C++ of a mask must name no symbol (reports/published/findings/torch-flex-cpu-symbols.md).
``fullgraph`` makes whatever can't be compiled an error, so that nothing runs eagerly in its place.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch
from kvproof_impls.torch_flex_blocks import QUERY_BLOCK, Blocks, make_blocks, padded_places, padded_to_power, symbols

DTYPES = ("float16", "bfloat16", "float32")
FOREVER = 1 << 40
KEEP_ALL = {"recompile_limit": FOREVER, "accumulated_recompile_limit": FOREVER}
"""Every model is a compilation or two of one function; Dynamo would stop after eight."""


class FlexKernel:
    """Contract ``PagedKernel``. Not declared: an LSE (flex_cpu.py refuses it), sinks, ``mla`` (two views of one storage
    are copied, pool and all), ``dirty_tail`` (a weight of 0 is multiplied by what the slot holds), ``capacity_bitwise``
    (where the CPU has tiles of matrices, the pool's size decides whether it is packed)."""

    pool_order = "NHD"
    max_context_len = None
    features = frozenset(["window", "softcap", "alibi", "out", "relabel_bitwise", "run_bitwise"])

    def unsupported(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in DTYPES:
            return f"dtype {spec.dtype!r}: one of {', '.join(DTYPES)} only"
        if spec.kv_dtype not in (None, spec.dtype):
            return f"kv_dtype {spec.kv_dtype!r}: query, key and value must have one type on a CPU ({spec.dtype})"
        if (spec.k_scale, spec.v_scale, spec.kv_scales) != (1, 1, "tensor"):
            return "scales of keys and values: there are no quantised pools"
        return None

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        """Scores and sums in float32, weights rounded to the type of the query for the second product, after they were
        summed; one page at a time (FLEX_ATTENTION_TEMPLATE)."""
        return {"p": spec.dtype, "accumulator": "float32", "tile": spec.block_size}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        """Where rows go when they are padded. The block mask is as wide as the pool, and is made when that is seen."""
        if (reason := self.unsupported(spec)) is not None:
            raise ValueError(f"torch-flex does not support {reason}")
        num_rows, query_len = max(2, batch.num_seqs), max(1, batch.max_query_len)
        place = padded_places(batch, query_len)
        context_lens, query_lens = (
            padded_to_power(torch.tensor(lens, dtype=torch.int64), num_rows)
            for lens in (batch.context_lens_host, batch.query_lens_host)
        )
        blocks: dict[int, Blocks] = {}
        attend = compiled(spec)

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            require_packed(pools)
            pool_blocks = pools.key.shape[0]
            if pool_blocks not in blocks:
                blocks[pool_blocks] = make_blocks(spec, batch, pool_blocks, num_rows, query_len)
            padded = query.new_zeros(num_rows * query_len, spec.num_q_heads, spec.head_dim).index_copy_(0, place, query)
            rows = padded.view(num_rows, query_len, spec.num_q_heads, -1).transpose(1, 2)
            symbols(rows, 0, 2)
            symbols(pools.key, 0)
            symbols(pools.value, 0)
            result = attend(rows, pools.key, pools.value, blocks[pool_blocks], context_lens, query_lens)
            result = result.transpose(1, 2).flatten(0, 1)[place]
            return result if out is None else out.copy_(result)

        return launch

    def dense(self, spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One decode row a sequence without paging, the baseline of a benchmark: ``query`` [num_seqs, num_q_heads,
        head_dim], ``key`` and ``value`` [num_seqs, context_len, num_kv_heads, head_dim]."""
        from torch.nn.attention.flex_attention import flex_attention

        attend = torch.compile(flex_attention, dynamic=True, fullgraph=True)
        keys, values = key.transpose(1, 2), value.transpose(1, 2)
        out: Tensor = attend(query[:, :, None], keys, values, scale=spec.scale_value, enable_gqa=True)
        return out[:, :, 0]


def require_packed(pools: KVPools) -> None:
    """The pages of a pool are one run of slots to FlexAttention.

    Raises:
        ValueError: a pool whose blocks do not follow one another without a gap.
    """
    for name, pool in (("key", pools.key), ("value", pools.value)):
        if not pool.is_contiguous():
            raise ValueError(f"the {name} pool has strides {pool.stride()}: blocks must be packed, in the order NHD")


@functools.cache
def compiled(spec: AttentionSpec) -> Callable[..., Tensor]:
    """``attend(query [num_rows, num_q_heads, query_len, head_dim], key pool, value pool, blocks, context lengths, query
    lengths)``, compiled at the first call for a model."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    page, slopes = spec.block_size, spec.alibi_slopes and torch.tensor(spec.alibi_slopes)

    def attend(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, contexts: Tensor, lens: Tensor) -> Tensor:
        def position(row: Tensor, slot: Tensor) -> Tensor:
            return blocks.logical[row * blocks.pool_blocks[0] + slot // page] * page + slot % page

        def distance(row: Tensor, index: Tensor, slot: Tensor) -> Tensor:
            return position(row, slot) - (contexts[row] - lens[row] + index)

        def sees(row: Tensor, head: Tensor, index: Tensor, slot: Tensor) -> Tensor:
            own = (position(row, slot) >= 0) & (position(row, slot) < contexts[row])
            if not spec.causal:
                return own
            behind = distance(row, index, slot)
            return own & (behind <= 0) & (behind > -(spec.window or FOREVER))

        def score(logit: Tensor, row: Tensor, head: Tensor, index: Tensor, slot: Tensor) -> Tensor:
            if spec.softcap is not None:
                logit = spec.softcap * torch.tanh(logit / spec.softcap)
            return logit if slopes is None else logit + slopes[head] * distance(row, index, slot)

        keys, values = (pool.flatten(0, 1).transpose(0, 1)[None] for pool in (key, value))
        mask = BlockMask.from_kv_blocks(
            blocks.counts[:, None],
            blocks.pages[:, None],
            blocks.full_counts[:, None],
            blocks.full_pages[:, None],
            (QUERY_BLOCK, page),
            sees,
            seq_lengths=(query.shape[2], keys.shape[2]),
            compute_q_blocks=False,
        )
        out: Tensor = flex_attention(query, keys, values, score, mask, spec.scale_value, enable_gqa=True)
        return out

    run = torch.compile(attend, dynamic=False, fullgraph=True)

    def call(*args: Any) -> Tensor:
        with warnings.catch_warnings(), torch._dynamo.config.patch(KEEP_ALL), torch.no_grad():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's compiler calls what torch has deprecated
            result: Tensor = run(*args)
            return result

    return call
