"""Wrong kernels that read 8-bit pools by the wrong scales, or latent attention from the wrong dims."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial
from selftest.wrong.right_storage_kernel import RightStorageKernel

Tensor = torch.Tensor


class RawCodes(RightStorageKernel):
    """Codes are taken for numbers, as soon as every token has its own scale."""

    def scale_at(self, spec: AttentionSpec, scales: Tensor | None, slots: Tensor, one: float) -> Tensor:
        return super().scale_at(spec, None if spec.kv_scales == "token" else scales, slots, one)


class CodesWithoutASign(RightStorageKernel):
    def rows(self, spec: AttentionSpec, pool: Tensor, slots: Tensor) -> Tensor:
        right = super().rows(spec, pool, slots)
        return right.contiguous().view(torch.uint8) if right.dtype == torch.int8 else right


class ValueScaleOfTheNextHead(RightStorageKernel):
    def value_scale(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> Tensor:
        right = super().value_scale(spec, pools, slots)
        return right.roll(-1, 1) if spec.kv_scales == "head" else right


class ScalesOfTheFirstHead(RightStorageKernel):
    def scale_at(self, spec: AttentionSpec, scales: Tensor | None, slots: Tensor, one: float) -> Tensor:
        right = super().scale_at(spec, scales, slots, one)
        return right[:, :1] if scales is not None else right


class ScalesInOrderOfPosition(RightStorageKernel):
    """Codes are gathered through the block table, their scales are not."""

    def scale_at(self, spec: AttentionSpec, scales: Tensor | None, slots: Tensor, one: float) -> Tensor:
        return super().scale_at(spec, scales, torch.arange(len(slots)), one)


class AScaleABlock(RightStorageKernel):
    """The first token of a block tells for all of them."""

    def scale_at(self, spec: AttentionSpec, scales: Tensor | None, slots: Tensor, one: float) -> Tensor:
        return super().scale_at(spec, scales, slots // spec.block_size * spec.block_size, one)


class KeyScaleAppliedTwice(RightStorageKernel):
    """To the keys and to the scores."""

    def key_scale(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> Tensor:
        right = super().key_scale(spec, pools, slots)
        return right if spec.kv_scales == "tensor" else right.square()


class ScalesOfKeysAndValuesSwapped(RightStorageKernel):
    def gather(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> tuple[Tensor, Tensor]:
        swapped = replace(pools, key_scale=pools.value_scale, value_scale=pools.key_scale)
        return super().gather(spec, swapped, slots)


class ScalesOfAPackedPool(RightStorageKernel):
    """Addresses of scales are made of their shape, whatever lies between them."""

    def scale_at(self, spec: AttentionSpec, scales: Tensor | None, slots: Tensor, one: float) -> Tensor:
        if scales is None or scales.dim() == 1:
            return super().scale_at(spec, scales, slots, one)
        _, size, heads = scales.shape
        packed = scales.as_strided(scales.shape, (size * heads, heads, 1), scales.storage_offset())
        return super().scale_at(spec, packed, slots, one)


class ScalesPastTheEndTimesZero(RightStorageKernel):
    """Weights of a whole tile take their scales; those past the context are zero, and so is not their product."""

    def attend_row(self, spec: AttentionSpec, batch: PagedBatch, row: int, query: Tensor, pools: KVPools) -> Partial:
        out, lse = super().attend_row(spec, batch, row, query, pools)
        if pools.value_scale is None or pools.value_scale.dim() == 1 or not batch.context_lens_host[row]:
            return out, lse
        last = self.block_table(batch, row)[(batch.context_lens_host[row] - 1) // spec.block_size]
        return out + (0 * pools.value_scale[last]).sum().to(out.dtype), lse


class LatentValuesOneDimLater(RightStorageKernel):
    def stored_values(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> Tensor:
        right = super().stored_values(spec, pools, slots)
        return self.rows(spec, pools.key, slots)[..., 1 : spec.value_dim_value + 1] if spec.mla else right


class LatentValuesFromTheEnd(RightStorageKernel):
    """The rope dims are taken to come first."""

    def stored_values(self, spec: AttentionSpec, pools: KVPools, slots: Tensor) -> Tensor:
        right = super().stored_values(spec, pools, slots)
        return self.rows(spec, pools.key, slots)[..., -spec.value_dim_value :] if spec.mla else right


class LatentScoresWithoutRope(RightStorageKernel):
    def scores(self, spec: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
        dims = spec.value_dim_value if spec.mla else spec.head_dim
        return super().scores(spec, query[..., :dims], key[..., :dims])


class LatentScaleOfTheValueDim(RightStorageKernel):
    """1/sqrt of the latent alone."""

    def scale(self, spec: AttentionSpec) -> float:
        return spec.value_dim_value**-0.5 if spec.mla and spec.scale is None else super().scale(spec)


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(RawCodes, "Q1", "FlashML-org/FreeToken#309", "codes are read without the scales of their tokens"),
        Wrong(CodesWithoutASign, "Q1", "ours", "int8 is read as uint8"),
        Wrong(ValueScaleOfTheNextHead, "Q1", "ours", "values are scaled as the next head's"),
        Wrong(ScalesOfTheFirstHead, "Q1", "ours", "one scale serves all heads"),
        Wrong(ScalesInOrderOfPosition, "Q1", "ours", "scales are read without the block table"),
        Wrong(AScaleABlock, "Q1", "ours", "a scale a token is read once a block"),
        Wrong(KeyScaleAppliedTwice, "Q1", "ours", "the scale is multiplied into the keys and into the scores"),
        Wrong(ScalesOfKeysAndValuesSwapped, "Q1", "ours", "keys are scaled as values are, and values as keys"),
        Wrong(ScalesOfAPackedPool, "G15", "vllm-project/vllm#49716", "the strides of the scales are ignored"),
        Wrong(ScalesPastTheEndTimesZero, "G2", "ours", "a weight of zero takes a scale of NaN"),
        Wrong(LatentValuesOneDimLater, "G13", "ours", "the values begin at the second dim of the keys"),
        Wrong(LatentValuesFromTheEnd, "G13", "ours", "the values are the last dims of the keys"),
        Wrong(LatentScoresWithoutRope, "G13", "ours", "the dims that are no value do not score"),
        Wrong(LatentScaleOfTheValueDim, "G13", "ours", "the scale of the latent without its rope"),
    )
}
