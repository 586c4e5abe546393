"""Wrong writes into 8-bit pools: other codes than the nearest, other scales than the row's, and copies without them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_storage_kernel import RightStorageKernel

Tensor = torch.Tensor


class HalfAwayFromZero(RightStorageKernel):
    def round(self, numbers: Tensor) -> Tensor:
        return (numbers.abs() + 0.5).floor() * numbers.sign()


class CutOff(RightStorageKernel):
    """A cast to an integer drops what is behind the point."""

    def round(self, numbers: Tensor) -> Tensor:
        return numbers.trunc()


class FloatsTowardZero(RightStorageKernel):
    """Bits behind the significand of an fp8 code are dropped."""

    def floats(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        nearest = super().floats(numbers, dtype)
        return torch.where(nearest.float().abs() > numbers.abs(), smaller(nearest), nearest.view(torch.uint8)).view(
            dtype
        )


def smaller(codes: Tensor) -> Tensor:
    """The next code toward zero, as bits."""
    bits = codes.view(torch.uint8)
    return torch.where(bits & 127 > 0, bits - 1, bits)


class IntegersWrap(RightStorageKernel):
    def integers(self, numbers: Tensor) -> Tensor:
        return self.round(numbers.nan_to_num(nan=0.0)).long().to(torch.int8)


class ScaleOfTheWholeToken(RightStorageKernel):
    """The largest magnitude of all heads; a quiet head keeps a few bits."""

    def magnitude(self, rows: Tensor) -> Tensor:
        return super().magnitude(rows).amax(1, keepdim=True).expand(-1, rows.shape[1], -1)


class ScaleOf128(RightStorageKernel):
    def magnitude(self, rows: Tensor) -> Tensor:
        return super().magnitude(rows) * 127 / 128


class ScaleOfTheLargestNumber(RightStorageKernel):
    """The maximum, without the sign taken off: rows of small positive numbers and large negative ones saturate."""

    def magnitude(self, rows: Tensor) -> Tensor:
        return rows.amax(-1, keepdim=True).clamp(min=0)


class InverseScaleIsStored(RightStorageKernel):
    """What codes were multiplied by, and not what they mean."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, pools, slot_mapping)
        if spec.kv_scales == "token" and pools.key_scale is not None:
            slots = slot_mapping[slot_mapping >= 0]
            place = (slots // spec.block_size, slots % spec.block_size)
            pools.key_scale[place] = 1 / pools.key_scale[place]


class ScaleIsNotStored(RightStorageKernel):
    """Of values; the slot keeps the scale that the token before had there."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        before = None if pools.value_scale is None else pools.value_scale.clone()
        super().write(spec, key, value, pools, slot_mapping)
        if before is not None and pools.value_scale is not None and not spec.mla:
            pools.value_scale.copy_(before)


class ScaleOfPaddingGoesToTheLastSlot(RightStorageKernel):
    """A row of slot -1 leaves its codes nowhere, and its scale in the last slot of the pool."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, pools, slot_mapping)
        if spec.kv_scales == "token" and pools.key_scale is not None and bool((slot_mapping < 0).any()):
            pools.key_scale[-1, -1] = self.magnitude(key.float())[slot_mapping < 0][-1, :, 0] / 127


class HeadScaleOfTheFirstHead(RightStorageKernel):
    def scale_of_rows(self, spec: AttentionSpec, rows: Tensor, scales: Tensor | None, one: float) -> Tensor:
        right = super().scale_of_rows(spec, rows, scales, one)
        return right[:, :1] if spec.kv_scales == "head" else right


class RowsTimesTheScale(RightStorageKernel):
    """A write multiplies, as a read does."""

    def scale_of_rows(self, spec: AttentionSpec, rows: Tensor, scales: Tensor | None, one: float) -> Tensor:
        right = super().scale_of_rows(spec, rows, scales, one)
        return right if spec.kv_scales == "token" else 1 / right


class NanIsForgotten(RightStorageKernel):
    """A maximum that passes NaN over: the row reads as numbers, with a zero where the NaN was."""

    def magnitude(self, rows: Tensor) -> Tensor:
        return super().magnitude(rows.nan_to_num(nan=0.0))


class NanOfOneHeadIsEveryHeads(RightStorageKernel):
    def magnitude(self, rows: Tensor) -> Tensor:
        right = super().magnitude(rows)
        return torch.where(right.isnan().any(1, keepdim=True), torch.nan, right)


class LatentValuesAreWrittenToo(RightStorageKernel):
    """On top of the keys that they are a part of."""

    def num_parts(self, spec: AttentionSpec) -> int:
        return 2


class ScalesStayBehind(RightStorageKernel):
    """Of values; a prefix that is copied reads as if its numbers were another size."""

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(KVPools(pools.key, pools.value, pools.key_scale), copies)


class HeadsAreTakenForBlocks(RightStorageKernel):
    """Scales a head are copied as if there were one a block."""

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(pools, copies)
        for scales in (pools.key_scale, pools.value_scale):
            if scales is not None and scales.dim() == 1:
                for source, destination in copies:
                    scales[destination % len(scales)] = scales[source % len(scales)]


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(HalfAwayFromZero, "F2", "ours", "a number half way between two codes is rounded away from zero"),
        Wrong(CutOff, "F2", "ours", "codes are cut off and not rounded"),
        Wrong(FloatsTowardZero, "F2", "ours", "fp8 codes are cut off and not rounded"),
        Wrong(IntegersWrap, "Q4", "ours", "a value beyond the range comes back with the other sign"),
        Wrong(ScaleOfTheWholeToken, "F2", "ours", "all heads of a token share a scale"),
        Wrong(ScaleOf128, "F2", "ours", "the largest number of a row is 128, and saturates"),
        Wrong(ScaleOfTheLargestNumber, "F2", "ours", "negative numbers are left out of the maximum"),
        Wrong(InverseScaleIsStored, "F2", "ours", "the slot holds the inverse of its scale"),
        Wrong(ScaleIsNotStored, "F2", "kekzl/imp#1189", "new codes under the old scale of their slot"),
        Wrong(
            ScaleOfPaddingGoesToTheLastSlot, "F1", "vllm-project/vllm#43810", "the scale of slot -1 goes to the last"
        ),
        Wrong(HeadScaleOfTheFirstHead, "F2", "ours", "every head is divided by the first one's scale"),
        Wrong(RowsTimesTheScale, "F2", "ours", "a write multiplies by the scale"),
        Wrong(NanIsForgotten, "Q4", "ours", "a NaN becomes a zero that nobody can tell from a zero"),
        Wrong(NanOfOneHeadIsEveryHeads, "Q4", "ours", "a NaN in one head makes all heads of its token NaN"),
        Wrong(LatentValuesAreWrittenToo, "F2", "ours", "values overwrite the keys that hold them"),
        Wrong(ScalesStayBehind, "Q2", "kekzl/imp#1189", "a block is copied without the scales of its values"),
        Wrong(HeadsAreTakenForBlocks, "Q2", "ours", "a block copy moves the scales of heads"),
    )
}
