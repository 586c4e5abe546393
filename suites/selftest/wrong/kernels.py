"""Wrong kernels: each a few lines on top of a right one, named after what is wrong with it.

``WRONG`` names the law that must kill each, and where such a kernel has been seen in public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import RightKernel


class Zeros(RightKernel):
    def attend_row(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().attend_row(*args)
        return torch.zeros_like(out), lse


class IgnoreBlockTable(RightKernel):
    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        right = super().block_table(batch, row)
        return [right[0] + logical for logical in range(len(right))]


class AssumeBlocksOf16(RightKernel):
    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        table = self.block_table(batch, row)
        return [table[min(t // 16, len(table) - 1)] * spec.block_size + t % 16 for t in range(context_len)]


class DropLastToken(RightKernel):
    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        right = list(super().slots(spec, batch, row, context_len))
        return right[:-2] + right[-2:-1] * 2  # as many keys as before, so that only the last one is missing


class ReadOneSlotPastTheEnd(RightKernel):
    def visible(self, query_len: int, num_keys: int) -> torch.Tensor:
        return torch.ones(query_len, num_keys, dtype=torch.bool).tril(num_keys - query_len)

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        past = self.block_table(batch, row)[context_len // spec.block_size]
        return [*super().slots(spec, batch, row, context_len), past * spec.block_size + context_len % spec.block_size]


class DuplicateABlock(RightKernel):
    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        right = super().block_table(batch, row)
        return [right[logical - logical % 2] for logical in range(len(right))]


class SkipTheFirstBlockOfLongContexts(RightKernel):
    def visible(self, query_len: int, num_keys: int) -> torch.Tensor:
        mask = super().visible(query_len, num_keys)
        mask[:, : 16 if num_keys > 32 else 0] = False
        return mask


class GroupSizeAsModulus(RightKernel):
    def key_head(self, head: int, spec: AttentionSpec) -> int:
        return head % spec.num_kv_heads


class MaskOnlyScores(RightKernel):
    """Whole blocks are read; unowned values are multiplied by a weight of zero, and 0·NaN is NaN."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        num_blocks = -(-batch.context_lens_host[row] // spec.block_size)
        last = self.block_table(batch, row)[max(0, num_blocks - 1)]
        return out + (0 * pools.value[last].float()).sum().to(out.dtype), lse


class ChunkLocalPositions(RightKernel):
    def visible(self, query_len: int, num_keys: int) -> torch.Tensor:
        return torch.ones(query_len, num_keys, dtype=torch.bool).tril(0 if query_len > 1 else num_keys)


class CausalOffByOne(RightKernel):
    def visible(self, query_len: int, num_keys: int) -> torch.Tensor:
        return torch.ones(query_len, num_keys, dtype=torch.bool).tril(num_keys - query_len + 1)


class ReadPadding(RightKernel):
    """Table entries past the last block are looked up, then masked."""

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        if outside := [block for block in self.block_table(batch, row) if not 0 <= block < 2**20]:
            raise IndexError(f"block {outside[0]} is outside the pool")
        return super().slots(spec, batch, row, context_len)


class ScaleOffByOnePercent(RightKernel):
    def scale(self, spec: AttentionSpec) -> float:
        return spec.scale_value * 1.01


class LseInBaseTwo(RightKernel):
    def softmax(self, *args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().softmax(*args)
        return out, lse / math.log(2)


class FiniteSentinel(RightKernel):
    """Masked scores are -1e4 and a row without keys averages what it must not see."""

    def softmax(
        self, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = scores.masked_fill(~visible, -1e4)
        return torch.einsum("hqk,khd->qhd", scores.softmax(2), value), torch.logsumexp(scores, 2).T


class SumInPhysicalOrder(RightKernel):
    """The right tokens in the order of their slots: right but for the last bits, which depend on where blocks lie."""

    def visible(self, query_len: int, num_keys: int) -> torch.Tensor:
        return (
            super().visible(query_len, num_keys)[:, self.order]
            if query_len > 1
            else super().visible(query_len, num_keys)
        )

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        right = list(super().slots(spec, batch, row, context_len))
        self.order = sorted(range(len(right)), key=right.__getitem__)
        return [right[i] for i in self.order]


class SplitByCapacity(RightKernel):
    """Keys are summed in two parts, cut where the table's width says."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.cut = batch.block_tables.shape[1]
        return super().attend_row(spec, batch, row, query, pools)

    def softmax(
        self, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.arange(scores.shape[2]).roll(self.cut % max(1, scores.shape[2]))
        return super().softmax(scores[..., order], visible[:, order], value[order])


class SumInRandomOrder(RightKernel):
    def softmax(
        self, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.randperm(scores.shape[2])
        return super().softmax(scores[..., order], visible[:, order], value[order])


class NegativeSlotWraps(RightKernel):
    def write(
        self, spec: AttentionSpec, key: torch.Tensor, value: torch.Tensor, pools: KVPools, slot_mapping: torch.Tensor
    ) -> None:
        super().write(spec, key, value, pools, slot_mapping % (pools.key.shape[0] * spec.block_size))


class WritePackedRows(RightKernel):
    """Takes the rows of K for packed, whatever their stride."""

    def write(
        self, spec: AttentionSpec, key: torch.Tensor, value: torch.Tensor, pools: KVPools, slot_mapping: torch.Tensor
    ) -> None:
        packed = key.as_strided(key.shape, (key.shape[1] * key.shape[2], key.shape[2], 1), key.storage_offset())
        super().write(spec, packed, value, pools, slot_mapping)


class CopyOnlyKeys(RightKernel):
    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            pools.key[destination] = pools.key[source]


class PlanOnce(RightKernel):
    """The first plan of a shape is kept: later steps read the tables of an earlier one."""

    def __init__(self) -> None:
        self.plans: dict[Any, Launch] = {}

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        shape = (spec, batch.num_seqs, batch.num_tokens, tuple(batch.block_tables.shape), batch.context_lens_host)
        return self.plans.setdefault(shape, super().plan(spec, batch))


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(Zeros, "G18", "the negative control of any comparison", "the output is never computed"),
        Wrong(IgnoreBlockTable, "G18", "tanishqkumar/ssd#23", "blocks are read one after the other from the first"),
        Wrong(AssumeBlocksOf16, "G18", "sgl-project/sglang#32902", "16 tokens a block, whatever the pool says"),
        Wrong(DropLastToken, "G18", "Dao-AILab/flash-attention#1217", "the newest token is left out"),
        Wrong(ReadOneSlotPastTheEnd, "G18", "flashinfer-ai/flashinfer#3716", "the boundary test is <= for <"),
        Wrong(DuplicateABlock, "G19", "sgl-project/mini-sglang#142", "every second block is read as the one before it"),
        Wrong(
            SkipTheFirstBlockOfLongContexts,
            "G19",
            "vllm-project/flash-attention#87",
            "the split that holds the first keys is lost",
        ),
        Wrong(GroupSizeAsModulus, "G10", "HazyResearch/HipKittens#22", "query head h reads key head h % num_kv_heads"),
        Wrong(MaskOnlyScores, "G2", "vllm-project/vllm#641", "unowned values are multiplied by zero"),
        Wrong(
            ChunkLocalPositions, "G18", "tenstorrent/vllm#415", "the causal mask counts from the chunk's first token"
        ),
        Wrong(CausalOffByOne, "G18", "pytorch/executorch#21857", "a query sees the token after its own"),
        Wrong(ReadPadding, "E2", "GeeeekExplorer/nano-vllm#258", "entries past the last block are followed"),
        Wrong(ScaleOffByOnePercent, "G1", "flashinfer-ai/flashinfer#1023", "1 % that no fixed tolerance sees"),
        Wrong(LseInBaseTwo, "G1", "sgl-project/sglang#40903", "the LSE is a binary logarithm"),
        Wrong(
            FiniteSentinel, "G6", "flashinfer-ai/flashinfer#4450", "masked scores are -1e4 instead of minus infinity"
        ),
        Wrong(
            SumInPhysicalOrder,
            "G3",
            "a sum over blocks sorted by id",
            "the order of summation depends on where blocks lie",
        ),
        Wrong(
            SplitByCapacity,
            "G17",
            "Dao-AILab/flash-attention#1417",
            "the order of summation depends on the table's width",
        ),
        Wrong(SumInRandomOrder, "G5", "triton-lang/triton#737", "the order of summation depends on nothing"),
        Wrong(NegativeSlotWraps, "F1", "vllm-project/vllm#43810", "slot -1 is the last of the pool"),
        Wrong(WritePackedRows, "F2", "flashinfer-ai/flashinfer#527", "the stride of the source is ignored"),
        Wrong(CopyOnlyKeys, "F1", "kekzl/imp#1189", "a block copy leaves the values behind"),
        Wrong(PlanOnce, "D2", "alibaba/rtp-llm#378", "a later step reads the tables of an earlier one"),
    )
}
