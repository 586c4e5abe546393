"""Wrong kernels that mistake a shape: heads, head dims, block sizes, strides, widths of integers, neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel


class GroupSizeAsModulus(RightKernel):
    def key_head(self, head: int, spec: AttentionSpec) -> int:
        return head % spec.num_kv_heads


class GroupAboveTheTile(RightKernel):
    """Sixteen query heads a tile, and the key head of the first for all of them."""

    def key_head(self, head: int, spec: AttentionSpec) -> int:
        return (head - head % 16 if spec.group_size > 16 else head) // spec.group_size


class GroupsOfAPowerOfTwoOnly(RightKernel):
    """Nothing is declared, and the kernel does not compile."""

    def key_head(self, head: int, spec: AttentionSpec) -> int:
        if spec.group_size & (spec.group_size - 1):
            raise RuntimeError(f"arange's arguments must be a power of 2, got {spec.group_size}")
        return super().key_head(head, spec)


class KeyHeadsPaddedToAPowerOfTwo(RightKernel):
    """Query heads are dealt out to as many key heads as a power of two."""

    def key_head(self, head: int, spec: AttentionSpec) -> int:
        padded = 1 << (spec.num_kv_heads - 1).bit_length()
        return min(head * padded // spec.num_q_heads, spec.num_kv_heads - 1)


class DimsInStepsOf64(RightKernel):
    """What is left of the head dim is not multiplied."""

    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        whole = max(64, spec.head_dim // 64 * 64)
        return super().scores(spec, query[..., :whole], key[..., :whole])


class OddHeadDimFailsInAChunk(RightKernel):
    """Alone, a prompt of head dim 80 runs; behind a cached prefix another kernel takes over."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        if spec.head_dim & (spec.head_dim - 1) and 1 < query_len < num_keys:
            raise AssertionError(f"arange's arguments must be a power of 2, got {spec.head_dim}")
        return super().visible(spec, query_len, num_keys)


class ValuesWithTheRowsOfKeys(RightKernel):
    """The address of a value is computed with the head dim of the keys."""

    def rows(self, spec: AttentionSpec, pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        if pool.shape[3] == spec.head_dim:
            return super().rows(spec, pool, slots)
        starts = slots[:, None] * spec.num_kv_heads * spec.head_dim + torch.arange(spec.num_kv_heads) * spec.head_dim
        flat = pool.reshape(-1)
        return flat[(starts[..., None] + torch.arange(pool.shape[3])) % len(flat)]


class AssumeBlocksOf16(RightKernel):
    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        table = self.block_table(batch, row)
        return [table[min(t // 16, len(table) - 1)] * spec.block_size + t % 16 for t in range(context_len)]


class CrashOnSmallBlocks(RightKernel):
    """Blocks of 1 and 8 are documented, and were never run."""

    def slots(self, spec: AttentionSpec, *args: Any) -> Sequence[int]:
        if spec.block_size < 16:
            raise RuntimeError(f"no kernel for block_size {spec.block_size}")
        return super().slots(spec, *args)


class HalfOfABlockOf32(RightKernel):
    def slots(self, spec: AttentionSpec, *args: Any) -> Sequence[int]:
        right = super().slots(spec, *args)
        return [slot - slot % 32 + slot % 16 for slot in right] if spec.block_size == 32 else right


class OffsetsOfSevenBits(RightKernel):
    """Blocks above 128 tokens wrap around."""

    def slots(self, spec: AttentionSpec, *args: Any) -> Sequence[int]:
        size = spec.block_size
        return [slot - slot % size + slot % size % 128 for slot in super().slots(spec, *args)]


class SlotFormulaOfAPackedPool(RightKernel):
    """Blocks follow one another without a gap, whatever their stride says."""

    def rows(self, spec: AttentionSpec, pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        _, _, heads, dim = pool.shape
        packed = pool.as_strided(
            (int(slots.max()) + 1 if len(slots) else 0, heads, dim), (heads * dim, dim, 1), pool.storage_offset()
        )
        return packed[slots]


class QueryRowsArePacked(RightKernel):
    """The row of a query is num_q_heads · head_dim long, also where it is a slice of a fused projection."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        _, heads, dim = query.shape
        packed = query.as_strided(query.shape, (heads * dim, dim, 1), query.storage_offset())
        return super().attend_row(spec, batch, row, packed, pools)


class TableRowsArePacked(RightKernel):
    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        tables = batch.block_tables
        table: list[int] = tables.as_strided(tables.shape, (tables.shape[1], 1), tables.storage_offset())[row].tolist()
        return table


class ReadAddressesIn32Bits(RightKernel):
    """Block id times stride in int32: past 2^31 it is negative, and wraps to another block."""

    modulus = 2**31

    def rows(self, spec: AttentionSpec, pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        a_token = pool.shape[2] * pool.shape[3]
        return super().rows(spec, pool, slots * a_token % self.modulus // a_token)


class BlockIdsIn16Bits(RightKernel):
    def block_table(self, batch: PagedBatch, row: int) -> list[int]:
        return [block & 0xFFFF for block in super().block_table(batch, row)]


class SplitByCapacity(RightKernel):
    """Keys are summed in two parts, cut where the table's width says."""

    def attend_row(self, spec: AttentionSpec, batch: PagedBatch, *args: Any) -> Partial:
        self.cut = self.where_to_cut(batch)
        return super().attend_row(spec, batch, *args)

    def where_to_cut(self, batch: PagedBatch) -> int:
        return int(batch.block_tables.shape[1])

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        order = torch.arange(scores.shape[2]).roll(self.cut % max(1, scores.shape[2]))
        return super().softmax(spec, scores[..., order], visible[:, order], value[order])


class SplitByTheNumberOfNeighbours(SplitByCapacity):
    def where_to_cut(self, batch: PagedBatch) -> int:
        return batch.num_seqs


class SplitByTheLongestNeighbour(SplitByCapacity):
    def where_to_cut(self, batch: PagedBatch) -> int:
        return batch.max_context_len


class ShortNeighboursAreEmpty(RightKernel):
    """Where no sequence of the batch fills a block, only the first is computed."""

    def attend_row(self, spec: AttentionSpec, batch: PagedBatch, row: int, *args: Any) -> Partial:
        out, lse = super().attend_row(spec, batch, row, *args)
        is_lost = row > 0 and batch.max_context_len < spec.block_size
        return (torch.zeros_like(out), lse) if is_lost else (out, lse)


class GivenOutputsAreNotLaunched(RightKernel):
    """The dispatch falls through, and the output stays what it was."""

    def deliver(self, result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return super().deliver(result, out) if out is None else out


class LastRowIsNotWritten(RightKernel):
    def deliver(self, result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if out is not None:
            out[:-1] = result[:-1]
            return out
        return result


class ARowMoreIsWritten(RightKernel):
    """The grid is rounded up, and the row past the last one is not masked."""

    def deliver(self, result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if out is not None and out.untyped_storage().nbytes() > result.nbytes:
            out.as_strided((len(out) + 1, *out.shape[1:]), out.stride(), out.storage_offset())[-1] = 0
        return super().deliver(result, out)


class TheGivenOutputIsIgnored(RightKernel):
    def deliver(self, result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return result


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(GroupSizeAsModulus, "G10", "HazyResearch/HipKittens#22", "query head h reads key head h % num_kv_heads"),
        Wrong(GroupAboveTheTile, "G10", "vllm-project/vllm#40792", "a tile of 16 heads reaches into the next group"),
        Wrong(GroupsOfAPowerOfTwoOnly, "G10", "pytorch/pytorch#151359", "a group of 6 is accepted and fails"),
        Wrong(KeyHeadsPaddedToAPowerOfTwo, "G10", "vllm-project/vllm#49157", "6 key heads are taken for 8"),
        Wrong(DimsInStepsOf64, "G10", "flashinfer-ai/flashinfer#4299", "dims past the last whole step are dropped"),
        Wrong(OddHeadDimFailsInAChunk, "G18", "vllm-project/vllm#4127", "head dim 80 fails behind a prefix"),
        Wrong(ValuesWithTheRowsOfKeys, "G13", "Dao-AILab/flash-attention#2368", "values are as long as keys are"),
        Wrong(AssumeBlocksOf16, "G12", "sgl-project/sglang#32902", "16 tokens a block, whatever the pool says"),
        Wrong(CrashOnSmallBlocks, "G12", "vllm-project/vllm#42510", "small blocks are accepted and fail"),
        Wrong(HalfOfABlockOf32, "G12", "vllm-project/vllm#57614", "blocks of 32 are wrong from the 17th token on"),
        Wrong(OffsetsOfSevenBits, "G18", "flashinfer-ai/flashinfer#4347", "blocks above 128 tokens are wrong"),
        Wrong(SlotFormulaOfAPackedPool, "G15", "vllm-project/vllm#42420", "blocks lie without a gap"),
        Wrong(QueryRowsArePacked, "G15", "ours", "the stride of the query is ignored"),
        Wrong(TableRowsArePacked, "G15", "ours", "the stride of the table is ignored"),
        Wrong(ReadAddressesIn32Bits, "F3", "vllm-project/vllm#50427", "an address is computed in 32 bits"),
        Wrong(BlockIdsIn16Bits, "F3", "ROCm/ATOM#702", "a block id is cut to 16 bits"),
        Wrong(SplitByCapacity, "G17", "Dao-AILab/flash-attention#1417", "the table's width decides on the order"),
        Wrong(SplitByTheNumberOfNeighbours, "G4", "deepseek-ai/FlashMLA#212", "the batch size decides on the order"),
        Wrong(
            SplitByTheLongestNeighbour, "G4", "Dao-AILab/flash-attention#2450", "the longest row decides on the order"
        ),
        Wrong(
            ShortNeighboursAreEmpty,
            "G4",
            "flashinfer-ai/flashinfer#725",
            "zeros for all but the first where every context is shorter than a block",
        ),
        Wrong(GivenOutputsAreNotLaunched, "G8", "flashinfer-ai/flashinfer#177", "the kernel is not launched"),
        Wrong(LastRowIsNotWritten, "G8", "ours", "a row keeps what the buffer held"),
        Wrong(ARowMoreIsWritten, "G8", "flagos-ai/FlagGems#5235", "the memory past the output is written"),
        Wrong(TheGivenOutputIsIgnored, "G8", "ours", "the output comes in memory of its own"),
    )
}
