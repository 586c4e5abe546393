"""Wrong kernels that read a common prefix once: in both parts, for one row alone, unmasked, or a block too long."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_cascade_kernel import RightCascadeKernel
from selftest.wrong.right_kernel import Partial

Tensor = torch.Tensor


class PrefixCountsTwice(RightCascadeKernel):
    def cuts(self, num_keys: int) -> list[slice]:
        return [slice(0, min(self.prefix, num_keys)), slice(0, num_keys)]


class TailFromTheNextBlock(RightCascadeKernel):
    def cuts(self, num_keys: int) -> list[slice]:
        prefix, tail = super().cuts(num_keys)
        return [prefix, slice(min(num_keys, tail.start + 16) if self.prefix else 0, num_keys)]


class PrefixOfTheFirstRowsQuery(RightCascadeKernel):
    """The scores of row 0 against the prefix are taken for everybody's."""

    def attend_row(self, spec: AttentionSpec, batch: PagedBatch, row: int, query: Tensor, pools: KVPools) -> Partial:
        self.first = query[:1].float()
        return super().attend_row(spec, batch, row, query, pools)

    def scores(self, spec: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
        right, end = super().scores(spec, query, key), min(self.prefix, len(key))
        if end:
            right[..., :end] = super().scores(spec, self.first.expand_as(query), key)[..., :end]
        return right


class PrefixOneBlockTooLong(RightCascadeKernel):
    """The block after the prefix is the first row's own."""

    def prefix_len(self, spec: AttentionSpec, batch: PagedBatch) -> int:
        right = super().prefix_len(spec, batch)
        return min(right + spec.block_size, min(batch.context_lens_host)) if right else 0


class PrefixIsNotMasked(RightCascadeKernel):
    """Queries are taken to stand behind it."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> Tensor:
        right = super().visible(spec, query_len, num_keys)
        if spec.window is None:
            right[:, : self.prefix] = True
        return right


class PrefixIgnoresTheWindow(RightCascadeKernel):
    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> Tensor:
        right = super().visible(spec, query_len, num_keys)
        right[:, : self.prefix] = super().visible(replace(spec, window=None), query_len, num_keys)[:, : self.prefix]
        return right


class ASinkInThePrefixToo(RightCascadeKernel):
    def merge(self, parts: list[Partial]) -> Partial:
        return super().merge(parts + parts[2:] if self.prefix else parts)


class PrefixAndTailWeighAlike(RightCascadeKernel):
    def shares(self, lses: Tensor) -> Tensor:
        right = super().shares(lses)
        return torch.full_like(right, 1 / len(right)) if self.prefix and (right > 0).all() else right


class LseOfTheTail(RightCascadeKernel):
    def merge(self, parts: list[Partial]) -> Partial:
        out, lse = super().merge(parts)
        return out, parts[1][1] if self.prefix else lse


class AlibiCountsFromTheTail(RightCascadeKernel):
    """In the prefix distances are those to its end."""

    def scores(self, spec: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
        right, end = super().scores(spec, query, key), min(self.prefix, len(key))
        if spec.alibi_slopes is not None and end:
            behind = torch.arange(len(key) - len(query), len(key))[:, None] - end + 1
            right[..., :end] += torch.tensor(spec.alibi_slopes)[:, None, None] * behind
        return right


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(PrefixCountsTwice, "G21", "ours", "the tail reads the prefix again"),
        Wrong(TailFromTheNextBlock, "G21", "ours", "the first block of the tail is in neither part"),
        Wrong(
            PrefixOfTheFirstRowsQuery, "G21", "vllm-project/vllm#22103", "the prefix is read for the first row alone"
        ),
        Wrong(PrefixOneBlockTooLong, "G21", "ours", "a block of the first row's is read for all"),
        Wrong(PrefixIsNotMasked, "G21", "ours", "a query inside the prefix sees what comes after it"),
        Wrong(PrefixIgnoresTheWindow, "G21", "ours", "the window ends where the prefix does"),
        Wrong(ASinkInThePrefixToo, "G21", "ours", "the sink counts in both parts"),
        Wrong(PrefixAndTailWeighAlike, "G21", "sgl-project/sglang#2465", "the parts are averaged"),
        Wrong(LseOfTheTail, "G21", "vllm-project/vllm#22103", "the LSE leaves the prefix out"),
        Wrong(AlibiCountsFromTheTail, "G21", "ours", "the bias in the prefix counts to its end"),
    )
}
