"""Wrong kernels that gather the wrong tokens, or give the answer to another row.

``WRONG`` names the law that must kill each, and where such a kernel has been seen in public.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel


class Zeros(RightKernel):
    def attend_row(self, *args: Any) -> Partial:
        out, lse = super().attend_row(*args)
        return torch.zeros_like(out), lse


class IgnoreBlockTable(RightKernel):
    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        right = super().block_table(batch, row)
        return [right[0] + logical for logical in range(len(right))]


class ContiguousOnAPrefixHit(RightKernel):
    """Only a prompt that starts behind cached tokens is read without its table."""

    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        right = super().block_table(batch, row)
        is_hit = batch.context_lens_host[row] > batch.query_lens_host[row] > 1
        return [right[0] + logical for logical in range(len(right))] if is_hit else right


class BlockIdsAsSlots(RightKernel):
    """The table holds blocks, and is read as if it held tokens."""

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        table = self.block_table(batch, row)
        return [table[min(t, len(table) - 1)] for t in range(context_len)]


class LocationsAreNotPadded(RightKernel):
    """All sequences' locations in one flat list by block, in which the next sequence is looked for right after the
    tokens of the one before, instead of at its own first block."""

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        flat: list[int] = []
        size = spec.block_size
        for other, length in enumerate(batch.context_lens_host):
            for block in self.block_table(batch, other)[: -(-length // size)]:
                flat += range(block * size, (block + 1) * size)
        start = sum(batch.context_lens_host[:row])
        return flat[start : start + context_len]


class TableOfComputedTokensOnly(RightKernel):
    """A chunk's own blocks are missing from the table: it was cut to what had been computed before."""

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        size, table = spec.block_size, self.block_table(batch, row)
        computed = context_len - batch.query_lens_host[row]
        known = len(table) if computed <= 0 or batch.query_lens_host[row] == 1 else -(-computed // size)
        return [table[min(t // size, known - 1)] * size + t % size for t in range(context_len)]


class TablesByNumberOfBlocks(RightKernel):
    """Sequences with equally many blocks share one step buffer, and the last to fill it wins."""

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        filled = {-(-length // spec.block_size): other for other, length in enumerate(batch.context_lens_host)}
        return super().slots(spec, batch, filled[-(-context_len // spec.block_size)], context_len)


class TheFirstRowsLengthForAll(RightKernel):
    def context_len(self, batch: PagedBatch, row: int) -> int:
        first = batch.context_lens_host[0]
        return min(max(first, batch.query_lens_host[row]), batch.context_lens_host[row])


class LengthsInInt64ReadAsInt32(RightKernel):
    """Every second length is the upper half of the one before it: zero."""

    def context_len(self, batch: PagedBatch, row: int) -> int:
        return int(torch.tensor(batch.context_lens_host, dtype=torch.int64).view(torch.int32)[row])


class QueryRowsOfEqualLength(RightKernel):
    """Rows are looked for as if every sequence had as many as the longest."""

    def query_rows(self, batch: PagedBatch, row: int) -> slice:
        start = min(row * batch.max_query_len, batch.num_tokens - batch.query_lens_host[row])
        return slice(start, start + batch.query_lens_host[row])


class TheLastBlockOfThePoolIsMissing(RightKernel):
    def rows(self, spec: AttentionSpec, pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        blocks = (slots // spec.block_size).clamp(max=len(pool) - 2)
        return super().rows(spec, pool, blocks * spec.block_size + slots % spec.block_size)


class DropTheLastToken(RightKernel):
    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        right = list(super().slots(spec, batch, row, context_len))
        return right[:-2] + right[-2:-1] * 2  # as many keys as before, so that only the last one is missing


class DuplicateABlock(RightKernel):
    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        right = super().block_table(batch, row)
        return [right[logical - logical % 2] for logical in range(len(right))]


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(Zeros, "G18", "the negative control of any comparison", "the output is never computed"),
        Wrong(
            IgnoreBlockTable,
            "G18",
            "huggingface/text-generation-inference#2711",
            "blocks are read one after the other from the first",
        ),
        Wrong(
            ContiguousOnAPrefixHit,
            "G18",
            "tanishqkumar/ssd#23",
            "a prompt behind cached tokens is read without its table",
        ),
        Wrong(BlockIdsAsSlots, "G18", "sgl-project/sglang#32902", "a table of blocks is taken for one of tokens"),
        Wrong(LocationsAreNotPadded, "G18", "sgl-project/sglang-jax#20", "the second sequence starts inside a block"),
        Wrong(
            TableOfComputedTokensOnly, "G18", "vllm-project/vllm#9532", "the table ends before the chunk's own tokens"
        ),
        Wrong(
            TablesByNumberOfBlocks,
            "G4",
            "NVIDIA/TensorRT-LLM#15461",
            "sequences of one batch share a buffer for their tables",
        ),
        Wrong(TheFirstRowsLengthForAll, "G18", "ours", "row 0's length is used for every row"),
        Wrong(LengthsInInt64ReadAsInt32, "G18", "flashinfer-ai/flashinfer#1654", "the second sequence has no tokens"),
        Wrong(QueryRowsOfEqualLength, "G18", "ours", "a ragged batch is read as a rectangle"),
        Wrong(TheLastBlockOfThePoolIsMissing, "G18", "NVIDIA/TensorRT-LLM#4505", "the pool's last block is never read"),
        Wrong(DropTheLastToken, "G18", "ours", "the newest token is left out"),
        Wrong(DuplicateABlock, "G19", "ours", "every second block is read as the one before it"),
    )
}
