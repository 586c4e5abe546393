"""Wrong cache writes and block copies: what lands in the wrong place, or does not arrive as it was sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import RightKernel

Tensor = torch.Tensor


class NegativeSlotWraps(RightKernel):
    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, pools, slot_mapping % (pools.key.shape[0] * spec.block_size))


class NegativeSlotIsTheRowBefore(RightKernel):
    """As pointers have it: slot -1 lies one row before the pool, in memory of somebody else."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, pools, slot_mapping)
        row = spec.num_kv_heads * spec.head_dim
        if (slot_mapping < 0).any() and pools.key.storage_offset() >= row:
            pools.key.as_strided((row,), (1,), pools.key.storage_offset() - row).fill_(0)


class TheRowAfterTheLastCopy(RightKernel):
    """A block is copied in tiles, the last of which goes on past it."""

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(pools, copies)
        end = pools.value.storage_offset() + pools.value.numel()
        if max(destination for _, destination in copies) == len(pools.value) - 1 and has_room(pools.value, end + 1):
            pools.value.as_strided((1,), (1,), end).fill_(0)


def has_room(pool: Tensor, num_elements: int) -> bool:
    return pool.untyped_storage().nbytes() >= num_elements * pool.element_size()


class DivideTheKeyInPlace(RightKernel):
    """What is to be stored is scaled where it came from, and attention gets it scaled."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, pools, slot_mapping)
        key.div_(spec.k_scale)


class PaddingGoesToSlotZero(RightKernel):
    """Rows that go nowhere go to the first slot, which is "reserved" and read by the next padded row."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, pools, slot_mapping.clamp(min=0))


class SlotsCountUpFromTheFirst(RightKernel):
    """Slots of a step are taken for neighbours; across a block boundary they are not."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        counted = slot_mapping[:1] + torch.arange(len(slot_mapping))
        super().write(spec, key, value, pools, torch.where(slot_mapping < 0, -1, counted % self.num_slots(pools)))

    def num_slots(self, pools: KVPools) -> int:
        return pools.key.shape[0] * pools.key.shape[1]


class SlotsReadAsInt32(RightKernel):
    """Every second slot is the upper half of the one before it."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, pools, slot_mapping.view(torch.int32)[: len(slot_mapping)])


class WritePackedRows(RightKernel):
    """Takes the rows of K for packed, whatever their stride."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        packed = key.as_strided(key.shape, (key.shape[1] * key.shape[2], key.shape[2], 1), key.storage_offset())
        super().write(spec, packed, value, pools, slot_mapping)


class HeadsOfATokenAreNeighbours(RightKernel):
    """The pool is stored by head, and all heads of a token are copied in one go to where the first belongs."""

    pool_order = "HND"

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, KVPools(by_token(pools.key), by_token(pools.value)), slot_mapping)


def by_token(pool: Tensor) -> Tensor:
    """The same memory, seen as if the heads of a token lay side by side."""
    _, size, heads, dim = pool.shape
    return pool.as_strided(pool.shape, (size * heads * dim, heads * dim, dim, 1), pool.storage_offset())


class HeadsSlideAcrossABlock(RightKernel):
    """Block ids go on counting where the next head begins: later heads land a block further."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        for head in range(spec.num_kv_heads):
            part = slice(head, head + 1)
            shifted = (slot_mapping + head * spec.block_size) % (pools.key.shape[0] * spec.block_size)
            of_head = KVPools(pools.key[:, :, part], pools.value[:, :, part])
            slots = torch.where(slot_mapping < 0, -1, shifted)
            super().write(spec, key[:, part], value[:, part], of_head, slots)


class WriteIntoAPackedPool(RightKernel):
    """The strides of the pool are ignored."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key, value, KVPools(by_token(pools.key), by_token(pools.value)), slot_mapping)


class WriteInHalfPrecision(RightKernel):
    """On the way every number passes through float16."""

    def encode(self, rows: Tensor, pool: Tensor, scale: float) -> Tensor:
        return super().encode(rows, pool, scale).half().to(pool.dtype)


class TheRestOfTheBlockIsCleared(RightKernel):
    """A block is written as a whole tile, with zeros after the token."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        for slot in slot_mapping[slot_mapping >= 0].tolist():
            block, offset = divmod(slot, spec.block_size)
            pools.key[block, offset + 1 :], pools.value[block, offset + 1 :] = 0, 0
        super().write(spec, key, value, pools, slot_mapping)


class TheFirstTokenOfAStepIsLost(RightKernel):
    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        super().write(spec, key[1:], value[1:], pools, slot_mapping[1:])


class WritesIn32Bits(RightKernel):
    """Slot times row length in int32: rows of the last blocks land in the first."""

    def write(self, spec: AttentionSpec, key: Tensor, value: Tensor, pools: KVPools, slot_mapping: Tensor) -> None:
        a_token = spec.num_kv_heads * spec.head_dim
        super().write(
            spec, key, value, pools, torch.where(slot_mapping < 0, -1, slot_mapping * a_token % 2**31 // a_token)
        )


class CopyOnlyKeys(RightKernel):
    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            pools.key[destination] = pools.key[source]


class CopySourcesInTheirOwnOrder(RightKernel):
    """Sources are sorted, and paired with destinations that are not."""

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(
            pools, [(source, copy[1]) for source, copy in zip(sorted(c[0] for c in copies), copies, strict=True)]
        )


class CopyOfOneSourceOnce(RightKernel):
    """A source that several forks copy reaches the last of them only."""

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(pools, list(dict(copies).items()))


class SwapInsteadOfCopy(RightKernel):
    """A block is moved and not copied: the source gets what the destination held."""

    def copy_blocks(self, pools: KVPools, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            for pool in (pools.key, pools.value):
                pool[[source, destination]] = pool[[destination, source]]


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(NegativeSlotWraps, "F1", "vllm-project/vllm#43810", "slot -1 is the last of the pool"),
        Wrong(NegativeSlotIsTheRowBefore, "F1", "ours", "slot -1 is the row before the pool"),
        Wrong(TheRowAfterTheLastCopy, "F1", "ours", "a block copy goes on past the end of the pool"),
        Wrong(DivideTheKeyInPlace, "F1", "ours", "the caller's keys are divided by their scale"),
        Wrong(PaddingGoesToSlotZero, "F1", "sgl-project/sglang#36207", "slot -1 is the first of the pool"),
        Wrong(
            SlotsCountUpFromTheFirst,
            "F2",
            "huggingface/text-generation-inference#2711",
            "slots of a step are counted up from the first",
        ),
        Wrong(SlotsReadAsInt32, "F2", "ROCm/aiter#4697", "the slot mapping is read in halves"),
        Wrong(WritePackedRows, "F2", "ours", "the stride of the source is ignored"),
        Wrong(HeadsOfATokenAreNeighbours, "F2", "vllm-project/vllm#22036", "the heads of a token are not neighbours"),
        Wrong(HeadsSlideAcrossABlock, "F2", "tenstorrent/tt-metal#54742", "later heads land in another block"),
        Wrong(WriteIntoAPackedPool, "G15", "flashinfer-ai/flashinfer#527", "the strides of the pool are ignored"),
        Wrong(WriteInHalfPrecision, "F2", "ours", "numbers pass through float16 on the way"),
        Wrong(TheRestOfTheBlockIsCleared, "F1", "ours", "a block is written as a tile, padded with zeros"),
        Wrong(TheFirstTokenOfAStepIsLost, "F2", "ours", "the first row of a step is not written"),
        Wrong(WritesIn32Bits, "F3", "vllm-project/vllm#1486", "a slot's address is computed in 32 bits"),
        Wrong(CopyOnlyKeys, "F1", "kekzl/imp#1189", "a block copy leaves the values behind"),
        Wrong(CopySourcesInTheirOwnOrder, "F1", "NVIDIA/TensorRT-LLM#15621", "a fork copies another branch's block"),
        Wrong(CopyOfOneSourceOnce, "F1", "ours", "of several forks one gets the copy"),
        Wrong(SwapInsteadOfCopy, "F1", "ours", "the source of a copy is overwritten"),
    )
}
