"""FlashInfer's two ways to attend to a context in pieces: a cascade over a common prefix, and merged states.

A piece in front is read without a mask, so that it must end where the first query row of its sequence stands: what
rows see of it is all of it. A window or a sink would have to know of the other piece, and is refused.

Written against flashinfer-python 0.7.2 (``cascade.py``). The library is imported when a launch is planned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvproof_impls.flashinfer_backends import FA2, Backend, arithmetic, model_options, unsupported
from kvproof_impls.flashinfer_pages import PageIndices, Workspaces, page_indices, pages_of, query_start

if TYPE_CHECKING:
    from torch import Tensor

    from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch

PIECES = Backend("fa2", options=frozenset({"dirty_tail", "lse", "out", "softcap"}))


def whole_blocks(batch: PagedBatch, block_size: int) -> list[int]:
    """Leading blocks of each sequence that each of its query rows sees all of."""
    lens = zip(batch.context_lens_host, batch.query_lens_host, strict=True)
    return [max(0, context_len - query_len) // block_size for context_len, query_len in lens]


def in_pieces(spec: AttentionSpec) -> Mapping[str, Any]:
    """Each piece gives an output in the type of the query, and these are merged."""
    return {**arithmetic(spec), "partials": spec.dtype}


class CascadeKernel:
    """Contract ``PagedKernel`` over ``MultiLevelCascadeAttentionWrapper``: one level where nothing is shared, else two.

    Its ``run`` gives no LSE.
    """

    pool_order = "NHD"
    features = (PIECES.features - {"lse"}) | {"cascade"}

    def __init__(self) -> None:
        self._workspaces = Workspaces()

    def unsupported(self, spec: AttentionSpec) -> str | None:
        return "return_lse: run gives none" if spec.return_lse else unsupported(spec, PIECES)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        return in_pieces(spec)

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        import flashinfer

        shared = self.shared_blocks(batch, spec.block_size)
        levels = [(query_start(batch), page_indices(batch, spec.block_size, first=[shared] * batch.num_seqs))]
        if shared:
            levels.insert(0, prefix_level(batch, spec.block_size, shared))
        workspace = self._workspaces.on(batch.block_tables.device)
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(len(levels), workspace, "NHD")
        starts, pages = zip(*levels, strict=True)
        wrapper.plan(
            list(starts),
            [level.indptr for level in pages],
            [level.indices for level in pages],
            [level.last_page_len for level in pages],
            *heads(spec),
            causal=spec.causal,
            **model_options(spec),
        )

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            result = wrapper.run(query, pages_of(pools, "NHD"))
            return result if out is None else out.copy_(result)

        return launch

    def shared_blocks(self, batch: PagedBatch, block_size: int) -> int:
        """Those of the common prefix that every query row of the batch sees all of."""
        return min(batch.common_prefix_blocks, *whole_blocks(batch, block_size))


class MergeKernel:
    """Contract ``PagedKernel`` over two prefill wrappers and ``merge_state``: every context is cut in two halves."""

    pool_order = "NHD"
    features = PIECES.features

    def __init__(self) -> None:
        self._workspaces = Workspaces()

    def unsupported(self, spec: AttentionSpec) -> str | None:
        return unsupported(spec, PIECES)

    def arithmetic(self, spec: AttentionSpec) -> Mapping[str, Any]:
        return in_pieces(spec)

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        import flashinfer

        cut = [(blocks + 1) // 2 for blocks in whole_blocks(batch, spec.block_size)]
        front = page_indices(batch, spec.block_size, until=cut)
        pieces = [(front, False), (page_indices(batch, spec.block_size, first=cut), spec.causal)]
        wrappers = []
        for pages, causal in pieces if any(cut) else pieces[1:]:
            workspace = self._workspaces.on(batch.block_tables.device)
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=FA2.name)
            lengths = (query_start(batch), pages.indptr, pages.indices, pages.last_page_len)
            wrapper.plan(*lengths, *heads(spec), causal=causal, **model_options(spec))
            wrappers.append(wrapper)

        def launch(query: Tensor, pools: KVPools, out: Tensor | None = None) -> Any:
            attended, lse = merged(wrappers, query, pages_of(pools, "NHD"))
            attended = attended if out is None else out.copy_(attended)
            return (attended, lse * math.log(2)) if spec.return_lse else attended

        return launch


def heads(spec: AttentionSpec) -> tuple[int, int, int, int]:
    return spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.block_size


def prefix_level(batch: PagedBatch, block_size: int, shared: int) -> tuple[Tensor, PageIndices]:
    """One sequence that is the prefix, with all query rows: where they begin and end, and its pages."""
    import torch

    longest = max(range(batch.num_seqs), key=lambda row: batch.context_lens_host[row])
    indices = batch.block_tables[longest, :shared].to(torch.int32)
    pages = PageIndices(int32(0, shared), indices, int32(block_size))
    return int32(0, batch.num_tokens), pages


def int32(*numbers: int) -> Tensor:
    import torch

    return torch.tensor(numbers, dtype=torch.int32)


def merged(wrappers: list[Any], query: Tensor, pages: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Output, and the LSE to base 2, of one piece or two."""
    import flashinfer

    states = [wrapper.run(query, pages, return_lse=True) for wrapper in wrappers]
    if len(states) == 1:
        attended, lse = states[0]
    else:
        (front, front_lse), (back, back_lse) = states
        attended, lse = flashinfer.merge_state(front, front_lse, back, back_lse)
    return attended, lse
