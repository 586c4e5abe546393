"""Kernels that are right in every ordinary case and wrong past a size, in a combination, or at the fourth launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, Launch, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel


class ClearTheTailInThePool(RightKernel):
    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        if offset := batch.context_lens_host[row] % spec.block_size:
            last = self.block_table(batch, row)[batch.context_lens_host[row] // spec.block_size]
            pools.key[last, offset:], pools.value[last, offset:] = 0, 0
        return super().attend_row(spec, batch, row, query, pools)


class ScaleTheQueryInPlace(RightKernel):
    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        right = super().plan(spec, batch)

        def launch(query: torch.Tensor, pools: KVPools, out: torch.Tensor | None = None) -> Any:
            result = right(query, pools, out)
            query.mul_(spec.scale_value)
            return result

        return launch


class TableIsPaddedPastItsEnd(RightKernel):
    """The last row of the table is filled up to a whole vector, in the caller's memory."""

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        table = batch.block_tables
        end = table.storage_offset() + table.numel()
        if table.is_contiguous() and table.untyped_storage().nbytes() > end * table.element_size():
            table.as_strided((1,), (1,), end).fill_(0)
        return super().plan(spec, batch, reuse)


class PaddingRowBeforeTheOutput(RightKernel):
    """A lane without a token has row -1, and its result is stored like any other."""

    def deliver(self, result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        row = result[0].numel()
        if out is not None and out.storage_offset() >= row:
            out.as_strided((row,), (1,), out.storage_offset() - row).fill_(0)
        return super().deliver(result, out)


class KeyHeadsPastTheFourth(RightKernel):
    def key_head(self, head: int, spec: AttentionSpec) -> int:
        return min(super().key_head(head, spec), 3)


class HeadsOfAGroupPastTheEighth(RightKernel):
    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        of_group = torch.arange(spec.num_q_heads) % spec.group_size
        same = torch.arange(spec.num_q_heads) - (of_group - 7).clamp(min=0)
        return super().scores(spec, query[:, same], key)


class OffsetsOfEightBits(RightKernel):
    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        right = super().slots(spec, batch, row, context_len)
        return [slot - slot % spec.block_size + slot % spec.block_size % 256 for slot in right]


class SecondHalfOfLargeBlocks(RightKernel):
    """Past the first block, offsets from 128 on are taken for those below."""

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        size, right = spec.block_size, super().slots(spec, batch, row, context_len)
        return [slot - 128 if t >= size and slot % size >= 128 else slot for t, slot in enumerate(right)]


class WindowOnTheTileGrid(RightKernel):
    """Far from the start a window begins at the next multiple of 16."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        right = super().visible(spec, query_len, num_keys)
        first = num_keys - query_len - (spec.window or num_keys) + 1
        return right & (torch.arange(num_keys)[None] >= -(-first // 16) * 16) if first >= 96 else right


class LseByGroup(RightKernel):
    """The LSE is stored [group_size, num_kv_heads]."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        return out, lse.reshape(-1, spec.num_kv_heads, spec.group_size).transpose(1, 2).flatten(1)


class LseWithoutTheWindow(RightKernel):
    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        out, _ = super().attend_row(spec, batch, row, query, pools)
        return out, super().attend_row(replace(spec, window=None), batch, row, query, pools)[1]


class ChannelsPastTheHeadDim(RightKernel):
    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        out[..., spec.head_dim :] = 0
        return out, lse


class OutputIgnoredWithTheLse(RightKernel):
    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        right = super().plan(spec, batch)
        return lambda query, pools, out=None: right(query, pools, None if spec.return_lse else out)


class FourthLaunch(RightKernel):
    """A counter of the plan is not reset: the fourth launch combines one part too few."""

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        right, num_launches = super().plan(spec, batch), 0

        def launch(query: torch.Tensor, pools: KVPools, out: torch.Tensor | None = None) -> Any:
            nonlocal num_launches
            num_launches += 1
            result = right(query, pools, out)
            return result if num_launches < 4 or spec.return_lse else result / 2

        return launch


class SixtyFourCopiesAtMost(RightKernel):
    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(pools, copies[:64])


class OneTileOfWrites(RightKernel):
    def write(
        self, spec: AttentionSpec, key: torch.Tensor, value: torch.Tensor, pools: KVPools, slot_mapping: torch.Tensor
    ) -> None:
        super().write(spec, key[:128], value[:128], pools, slot_mapping[:128])


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(ClearTheTailInThePool, "G20", "ours", "slots past the context are cleared in the caller's pool"),
        Wrong(ScaleTheQueryInPlace, "G20", "ours", "the scale is multiplied into the caller's query"),
        Wrong(TableIsPaddedPastItsEnd, "G20", "ours", "the entry past the end of the block table is cleared"),
        Wrong(PaddingRowBeforeTheOutput, "G8", "ours", "the row before the output is written"),
        Wrong(KeyHeadsPastTheFourth, "G10", "ours", "key heads from the fifth on read the fourth"),
        Wrong(HeadsOfAGroupPastTheEighth, "G10", "ours", "a group of more than 8 shares its eighth query"),
        Wrong(OffsetsOfEightBits, "G18", "flashinfer-ai/flashinfer#320", "an offset in a block is kept in 8 bits"),
        Wrong(
            SecondHalfOfLargeBlocks,
            "G18",
            "flashinfer-ai/flashinfer#4347",
            "half of a block above 128 is read twice",
        ),
        Wrong(WindowOnTheTileGrid, "G11", "ours", "a far window starts at the next tile"),
        Wrong(LseByGroup, "G1", "vllm-project/vllm#57012", "the LSE is transposed"),
        Wrong(LseWithoutTheWindow, "G13", "ours", "the LSE counts what the window hides"),
        Wrong(ChannelsPastTheHeadDim, "G13", "ours", "value channels beyond the head dim are lost"),
        Wrong(OutputIgnoredWithTheLse, "G8", "ours", "a given output is ignored when the LSE is asked for as well"),
        Wrong(FourthLaunch, "G14", "ours", "the fourth launch of a plan is wrong"),
        Wrong(SixtyFourCopiesAtMost, "F1", "ours", "the 65th copy is not made"),
        Wrong(OneTileOfWrites, "F2", "ours", "the 129th token is not written"),
    )
}
