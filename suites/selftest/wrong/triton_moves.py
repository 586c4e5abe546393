"""Our Triton cache write and block copy with one line changed."""

from __future__ import annotations

from selftest.wrong.catalogue import Wrong
from selftest.wrong.mutated_triton import TritonMutant


class TritonSlotZeroIsNowhere(TritonMutant):
    module, old, new = "cache_write", "goes = slots >= 0", "goes = slots > 0"


class TritonPaddingGoesToSlotZero(TritonMutant):
    module, old, new = "cache_write", "slots = tl.load(slot_mapping + tokens, mask=tokens < num_tokens, other=-1)", (
        "slots = tl.load(slot_mapping + tokens, mask=tokens < num_tokens, other=-1)\n"
        "    slots = tl.where(tokens < num_tokens, tl.maximum(slots, 0), -1)"
    )  # fmt: skip


class TritonValuesGoWhereKeysGo(TritonMutant):
    module, old, new = "cache_write", " " * 12 + "stride_value_block, stride_value_offset", (
        " " * 12 + "stride_value_block, stride_key_offset"
    )  # fmt: skip


class TritonHeadsOfTheSourceArePacked(TritonMutant):
    module, old, new = "cache_write", "tokens * stride_row + head", "tokens * num_dims * tl.num_programs(1) + head"


class TritonWriteOffsetsWrap(TritonMutant):
    module, old, new = "cache_write", "pool + blocks * stride_block", "pool + ((blocks * stride_block) & 0x7FFFFFFF)"


class TritonWriteMultipliesByTheScale(TritonMutant):
    module, old, new = "cache_write", "encode(tl.div_rn(x, divisor), CODE)", "encode(x * divisor, CODE)"


class TritonWriteTakesTheFirstHeadsScale(TritonMutant):
    module, old, new = "cache_write", "tl.load(scale + head * stride_scale_head)", "tl.load(scale)"


class TritonScaleOfARowIsNotStored(TritonMutant):
    module, old, new = "cache_write", "tl.store(places, scales, mask=goes)", "scales = scales"


class TritonScalesOfRowsForgetTheHead(TritonMutant):
    module, old, new = "cache_write", "offsets * stride_scale_offset + head * stride_scale_head", (
        "offsets * stride_scale_offset"
    )  # fmt: skip


class TritonScaleMakes128(TritonMutant):
    module, old, new = "codes", "(tl.float32, bitcast=True), 127.0)", "(tl.float32, bitcast=True), 128.0)"


class TritonNanIsNoMagnitude(TritonMutant):
    """The row of a NaN gets the scale of its other numbers, as a maximum that ignores NaN gives it."""

    module, old, new = "codes", "magnitudes = x.to(tl.int32", "magnitudes = tl.where(x == x, x, 0.0).to(tl.int32"


class TritonHalvesGoUp(TritonMutant):
    module, old, new = "codes", "return (x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000", (
        "return tl.floor(x + 0.5).to(tl.int32)"
    )  # fmt: skip


class TritonCodesAreCutOff(TritonMutant):
    module, old, new = "codes", "return (x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000", (
        "return x.to(tl.int32)"
    )  # fmt: skip


class TritonSubnormalCodesAreZero(TritonMutant):
    module, old, new = "codes", "return tl.where(is_nan, 0x7F, codes)", (
        "codes = tl.where(codes < (1 << MANTISSA), 0, codes)\n    return tl.where(is_nan, 0x7F, codes)"
    )  # fmt: skip


class TritonFp8DoesNotSaturate(TritonMutant):
    module, old, new = "codes", "    magnitude = tl.minimum(magnitude, LARGEST)\n", ""


class TritonNanBecomesZero(TritonMutant):
    module, old, new = "codes", "tl.where(is_nan, 0x7F, codes)", "codes"


class TritonInt8Wraps(TritonMutant):
    module, old, new = "codes", "tl.minimum(tl.maximum(x, -127.0), 127.0)", "x"


class TritonCopyEndsAfterOneTile(TritonMutant):
    module, old, new = "block_copy", "triton.cdiv(block_size, block_t))", "1)"


class TritonCopyFromTheDestination(TritonMutant):
    module, old, new = "block_copy", "(rows + source * stride_block)", "(rows + destination * stride_block)"


class TritonCopyLeavesScales(TritonMutant):
    module, old, new = "block_copy", "token_scales=key_scale is not None", "token_scales=False"


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(TritonSlotZeroIsNowhere, "D2", "ours", "the first slot of the pool is never written"),
        Wrong(TritonPaddingGoesToSlotZero, "F1", "sgl-project/sglang#36207", "slot -1 is the first of the pool"),
        Wrong(TritonValuesGoWhereKeysGo, "F2", "ours", "values are stored with the strides of the keys"),
        Wrong(TritonHeadsOfTheSourceArePacked, "F2", "ours", "the stride of the source is ignored"),
        Wrong(TritonWriteOffsetsWrap, "F3", "vllm-project/vllm#1486", "a slot's address is computed in 31 bits"),
        Wrong(TritonWriteMultipliesByTheScale, "F2", "ours", "a write multiplies by the scale"),
        Wrong(TritonWriteTakesTheFirstHeadsScale, "F2", "ours", "all heads are written with the first one's scale"),
        Wrong(TritonScaleOfARowIsNotStored, "F2", "ours", "the slot keeps the scale of another token"),
        Wrong(TritonScalesOfRowsForgetTheHead, "F2", "ours", "all heads store their scale in the first one's place"),
        Wrong(TritonScaleMakes128, "F2", "ours", "the largest magnitude of a row becomes 128"),
        Wrong(TritonNanIsNoMagnitude, "Q4", "ours", "a NaN is left out of the scale of its row"),
        Wrong(TritonHalvesGoUp, "F2", "ours", "a half is rounded up"),
        Wrong(TritonCodesAreCutOff, "F2", "ours", "codes are cut off instead of rounded"),
        Wrong(TritonSubnormalCodesAreZero, "F2", "ours", "numbers below the smallest normal one become 0"),
        Wrong(TritonFp8DoesNotSaturate, "Q4", "pytorch/FBGEMM#4237", "what is beyond the range becomes another code"),
        Wrong(TritonNanBecomesZero, "Q4", "ours", "a NaN is stored as 0"),
        Wrong(TritonInt8Wraps, "Q4", "ours", "what is beyond the range of int8 wraps"),
        Wrong(TritonCopyEndsAfterOneTile, "F1", "ours", "the end of a large block is not copied"),
        Wrong(TritonCopyFromTheDestination, "F1", "ours", "blocks are copied onto themselves"),
        Wrong(TritonCopyLeavesScales, "Q2", "kekzl/imp#1189", "codes are copied without their scales"),
    )
}
