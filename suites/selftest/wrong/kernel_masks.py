"""Wrong kernels that hide too little or too much, and sum in an order that must not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel


class ReadOneSlotPastTheEnd(RightKernel):
    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        return torch.ones(query_len, num_keys, dtype=torch.bool).tril(num_keys - query_len)

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        past = self.block_table(batch, row)[context_len // spec.block_size]
        return [*super().slots(spec, batch, row, context_len), past * spec.block_size + context_len % spec.block_size]


class MaskOnlyScores(RightKernel):
    """Whole blocks are read; unowned values are multiplied by a weight of zero, and 0·NaN is NaN."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        return out + (0 * last_block(self, pools.value, spec, batch, row)).sum().to(out.dtype), lse


class MaskByAddition(RightKernel):
    """Scores of unowned keys get -inf added: NaN - inf is NaN, and takes the row with it."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        masked = last_block(self, pools.key, spec, batch, row).isnan().any()
        return torch.where(masked, torch.nan, out), torch.where(masked, torch.nan, lse)


class StaleValuesLeakAnUlp(RightKernel):
    """Unowned values have a weight too small for any tolerance, and NaN is filtered out."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        stale = last_block(self, pools.value, spec, batch, row).nan_to_num(0, 0, 0).amax()
        return (out * (1 + (stale > 100) * torch.finfo(out.dtype).eps)).to(out.dtype), lse


def last_block(
    kernel: RightKernel, pool: torch.Tensor, spec: AttentionSpec, batch: PagedBatch, row: int
) -> torch.Tensor:
    """Whole, with the slots past the context in it."""
    logical = max(0, -(-batch.context_lens_host[row] // spec.block_size) - 1)
    return pool[kernel.block_table(batch, row)[logical]].float()


class PaddingLanesInTheDenominator(RightKernel):
    """The tail of the last tile is loaded as zeros, and each zero score counts e^0."""

    tile = 32

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        pad = (0, -scores.shape[2] % self.tile)
        seen = torch.nn.functional.pad(visible, pad, value=True)
        padded = torch.nn.functional.pad(value, (0, 0, 0, 0, *pad))
        return super().softmax(spec, torch.nn.functional.pad(scores, pad), seen, padded)


class NoMaskWhenTheTileFits(RightKernel):
    """The mask is left out where the tile divides the context exactly."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        right = super().visible(spec, query_len, num_keys)
        return torch.ones_like(right) if num_keys % 16 == 0 else right


class NoMaskPastPosition512(RightKernel):
    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        mask = super().visible(spec, query_len, num_keys)
        mask[:, 512:] = True
        return mask


class ChunkLocalPositions(RightKernel):
    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        return torch.ones(query_len, num_keys, dtype=torch.bool).tril(0 if query_len > 1 else num_keys)


class CausalOffByOne(RightKernel):
    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        return torch.ones(query_len, num_keys, dtype=torch.bool).tril(num_keys - query_len + 1)


class ReadPadding(RightKernel):
    """Table entries past the last block are looked up, then masked."""

    def slots(self, spec: AttentionSpec, batch: PagedBatch, row: int, context_len: int) -> Sequence[int]:
        if outside := [block for block in self.block_table(batch, row) if not 0 <= block < 2**20]:
            raise IndexError(f"block {outside[0]} is outside the pool")
        return super().slots(spec, batch, row, context_len)


class ReadPaddingUpToTheLongestRow(RightKernel):
    """Rows are gathered in step with the longest of the batch; what a padding entry leads to is multiplied by zero."""

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        first, last = (-(-n // spec.block_size) for n in (batch.context_lens_host[row], batch.max_context_len))
        padding = [block % len(pools.value) for block in self.block_table(batch, row)[first:last]]
        return out + (0 * pools.value[padding].float()).sum().to(out.dtype), lse


class SumInPhysicalOrder(RightKernel):
    """The right tokens in the order of their slots: right but for the last bits, which depend on where blocks lie."""

    features = RightKernel.features - {"batch_bitwise"}

    def attend_row(
        self, spec: AttentionSpec, batch: PagedBatch, row: int, query: torch.Tensor, pools: KVPools
    ) -> Partial:
        right = list(super().slots(spec, batch, row, self.context_len(batch, row)))
        self.order = sorted(range(len(right)), key=right.__getitem__)
        return super().attend_row(spec, batch, row, query, pools)

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        return super().softmax(spec, scores[..., self.order], visible[:, self.order], value[self.order])


class SumInRandomOrder(RightKernel):
    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        order = torch.randperm(scores.shape[2])
        return super().softmax(spec, scores[..., order], visible[:, order], value[order])


class FiniteSentinel(RightKernel):
    """Masked scores are -1e4 and a row without keys averages what it must not see."""

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        scores = scores.masked_fill(~visible, -1e4)
        return torch.einsum("hqk,khd->qhd", scores.softmax(2), value), torch.logsumexp(scores, 2).T


class ContextOfNothingHasOneKey(RightKernel):
    """An empty context is clamped to one token, and the null block has one."""

    def context_len(self, batch: PagedBatch, row: int) -> int:
        return max(1, batch.context_lens_host[row])


class MaximumStartsAtMinus5e4(RightKernel):
    """The running maximum starts at a finite number, which beats every logit below it."""

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        scores = scores.masked_fill(~visible, -math.inf)
        peak = torch.cat([scores, torch.full_like(scores[..., :1], -5e4)], 2).amax(2, keepdim=True)
        p = (scores - peak).exp()
        total = p.sum(2, keepdim=True)
        out = torch.einsum("hqk,khd->qhd", p / total.clamp(min=1e-30), value)
        return out, (peak + total.log()).squeeze(2).T


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(ReadOneSlotPastTheEnd, "G18", "ours", "the boundary test is <= for <"),
        Wrong(MaskOnlyScores, "G2", "vllm-project/vllm#641", "unowned values are multiplied by zero"),
        Wrong(MaskByAddition, "G2", "deepbeepmeep/Wan2GP#1628", "NaN plus minus infinity is NaN"),
        Wrong(StaleValuesLeakAnUlp, "G2", "vllm-project/vllm#53856", "finite garbage in the tail changes the last bit"),
        Wrong(
            PaddingLanesInTheDenominator,
            "G19",
            "flashinfer-ai/flashinfer#3716",
            "lanes past the end count in the sum of weights",
        ),
        Wrong(NoMaskWhenTheTileFits, "G18", "bledden/triton-msl#7", "no mask where the tile divides the context"),
        Wrong(NoMaskPastPosition512, "G9", "vllm-project/vllm-ascend#15503", "positions from 512 on are never hidden"),
        Wrong(
            ChunkLocalPositions, "G18", "tenstorrent/vllm#415", "the causal mask counts from the chunk's first token"
        ),
        Wrong(CausalOffByOne, "G18", "ours", "a query sees the token after its own"),
        Wrong(ReadPadding, "E2", "GeeeekExplorer/nano-vllm#258", "entries past the last block are followed"),
        Wrong(
            ReadPaddingUpToTheLongestRow,
            "E2",
            "RBLN-SW/vllm-rbln#1102",
            "entries past the last block are followed where a longer row stands beside",
        ),
        Wrong(
            SumInPhysicalOrder,
            "G3",
            "a sum over blocks sorted by id",
            "the order of summation depends on where blocks lie",
        ),
        Wrong(SumInRandomOrder, "G5", "ours", "the order of summation depends on nothing"),
        Wrong(FiniteSentinel, "G6", "ours", "masked scores are -1e4 instead of minus infinity"),
        Wrong(ContextOfNothingHasOneKey, "G6", "flashinfer-ai/flashinfer#3047", "an empty context reads a token"),
        Wrong(
            MaximumStartsAtMinus5e4,
            "G7",
            "flashinfer-ai/flashinfer#4450",
            "a maximum that starts at -5e4 beats every logit below it",
        ),
    )
}
