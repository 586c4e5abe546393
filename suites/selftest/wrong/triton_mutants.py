"""Our Triton kernels with one line changed, run in Triton's interpreter.

The source text of the kernel, of the steps it is made from and of its adapter is loaded anew under names of its own, so
that the mutant has nothing in common with the kernels that are under test beside it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import SourceLoader
from typing import Any, ClassVar

from kvproof_impls.contract import AttentionSpec, Launch, PagedBatch
from selftest.wrong.catalogue import Wrong

CHAIN = ("steps", "combine", "work", "attention", "plan", "codes", "cache_write", "block_copy")
"""In order of import; the adapter comes last."""


class MutatedSource(SourceLoader):
    def __init__(self, origin: str, text: str) -> None:
        self.origin, self.text = origin, text

    def get_filename(self, fullname: str) -> str:
        return f"{fullname}.py"

    def get_data(self, path: str | bytes) -> bytes:
        return self.text.encode()


def load_mutant(name: str, module: str, old: str, new: str) -> Any:
    """The adapter's class over kernels in whose ``module`` the text ``old`` has become ``new``.

    Raises:
        ValueError: ``old`` does not stand exactly once in ``module``: the kernel has changed, and the mutant with it.
    """
    originals = {part: f"kvproof_kernels.{part}" for part in CHAIN} | {"adapter": "kvproof_impls.triton_kernels"}
    renamed = {original: f"selftest.wrong.mutated.{name}.{part}" for part, original in originals.items()}
    for part, original in originals.items():
        text = source_of(original)
        if part == module:
            if text.count(old) != 1:
                raise ValueError(f"{name}: {original} has {old!r} {text.count(old)} times, wanted once")
            text = text.replace(old, new)
        for known, alias in renamed.items():
            text = text.replace(f"from {known} import", f"from {alias} import")
        load(renamed[original], text)
    return sys.modules[renamed[originals["adapter"]]].TritonKernel  # type: ignore[attr-defined]


def source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()


def load(name: str, text: str) -> None:
    spec = importlib.util.spec_from_loader(name, MutatedSource(name, text))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class TritonMutant:
    """What differs is said by the subclass: one text of one module."""

    module: ClassVar[str]
    old: ClassVar[str]
    new: ClassVar[str]

    def __init__(self) -> None:
        self.kernel = load_mutant(type(self).__name__, self.module, self.old, self.new)("cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["kernel"], name)

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        return self.kernel.plan(spec, batch, reuse)


class TritonBlocksOf16(TritonMutant):
    module, old, new = "steps", "tokens % block_size\n\n", "tokens % 16\n\n"


class TritonUnownedRowsAreLoaded(TritonMutant):
    """The tail of a tile is read from block 0, and weighed with zero."""

    module, old, new = "steps", "mask = owned[:, None] & (dims", "mask = (owned[:, None] | True) & (dims"


class TritonDimsAreNotMasked(TritonMutant):
    """Past the head dim stands the next head, and is multiplied by a zero of the query."""

    module, old, new = "steps", "& (dims < num_dims)[None, :]", "& (dims >= 0)[None, :]"


class TritonSumIsNotRescaled(TritonMutant):
    module, old, new = "steps", "normalizer * rescale + tl", "normalizer + tl"


class TritonOutputIsNotRescaled(TritonMutant):
    module, old, new = "steps", "accumulator * rescale[:, None]  #", "accumulator  #"


class TritonEmptyRowsShiftByInfinity(TritonMutant):
    module, old, new = "steps", 'tl.where(new_maximum == float("-inf"), 0.0, new_maximum)', "new_maximum"


class TritonLseWithoutTheMaximum(TritonMutant):
    module, old, new = "steps", "(maximum + tl.log2(divisor))", "tl.log2(divisor)"


class TritonLseInBaseTwo(TritonMutant):
    module, old, new = "steps", "(maximum + tl.log2(divisor)) * LN_2", "maximum + tl.log2(divisor)"


class TritonOffsetsWrap(TritonMutant):
    """At 2^31, and stay positive: a negative one would end the process."""

    module, old, new = "steps", "pool + blocks * stride_block", "pool + ((blocks * stride_block) & 0x7FFFFFFF)"


class TritonCapIsLeftOut(TritonMutant):
    module, old, new = "steps", "softcap * tanh(scores / softcap)", "softcap * (scores / softcap)"


class TritonWeightsInBaseTwo(TritonMutant):
    module, old, new = "attention", "scale_log2 = scale * LOG2_E", "scale_log2 = scale"


class TritonBoundaryIncluded(TritonMutant):
    module, old, new = "attention", "owned = tokens < end", "owned = tokens <= end"


class TritonLastTileIsLost(TritonMutant):
    module, old, new = "attention", "range(first_token, end, BLOCK_N)", "range(first_token, end - 1, BLOCK_N)"


class TritonHiddenScoresAreFinite(TritonMutant):
    """What is hidden weighs nothing only beside a score that is far above."""

    module, old, new = "attention", 'tl.where(visible, scores, float("-inf"))', "tl.where(visible, scores, -1e4)"


class TritonValuesWithTheStrideOfKeys(TritonMutant):
    module, old, new = "attention", "stride_value_block, stride_value_offset, value_dims", (
        "stride_key_block, stride_key_offset, value_dims"
    )  # fmt: skip


class TritonOwnTokenIsHidden(TritonMutant):
    module, old, new = "attention", "(distance <= 0)", "(distance < 0)"


class TritonWindowIsOneWider(TritonMutant):
    """Only where the window's tile holds another token: the first one of the range is right for its first row."""

    module, old, new = "attention", "(distance > -window)", "(distance >= -window)"


class TritonRowsAndHeadsSwapped(TritonMutant):
    module, old, new = "attention", "heads = kv_head * group_size + pairs % group_size", (
        "heads = kv_head * group_size + pairs // num_rows % group_size"
    )  # fmt: skip


class TritonScaleOfKeysTwice(TritonMutant):
    module, old, new = "attention", "scale *= tl.load(key_scales + kv_head)", (
        "scale *= tl.load(key_scales + kv_head) * tl.load(key_scales + kv_head)"
    )  # fmt: skip


class TritonScaleOfTheFirstHead(TritonMutant):
    module, old, new = (
        "attention",
        "value_scale = tl.load(value_scales + kv_head)",
        "value_scale = tl.load(value_scales)",
    )


class TritonSinkInEverySplit(TritonMutant):
    module, old, new = "attention", "mask=exists & (place < 0), other", "mask=exists, other"


class TritonSplitsShareOnePlace(TritonMutant):
    module, old, new = "attention", "other=0) + place)", "other=0))"


class TritonTilesOfRowsAreLost(TritonMutant):
    """The last rows of a sequence that do not fill a tile."""

    module, old, new = "work", "counts = ceil_div(queries, rows_per_tile)", (
        "counts = np.maximum(queries > 0, queries // rows_per_tile)"
    )  # fmt: skip


class TritonVisibleRowsAreCountedShort(TritonMutant):
    module, old, new = "work", "np.maximum(shared, positions[first_row + num_rows - 1] + 1)", (
        "np.maximum(shared, positions[first_row + num_rows - 1])"
    )  # fmt: skip


class TritonWindowStartsOneLate(TritonMutant):
    module, old, new = "work", "positions[first_row] - window + 1", "positions[first_row] - window + 2"


class TritonSplitsOverlap(TritonMutant):
    module, old, new = "work", "end = np.minimum(start + sizes[tile], ", "end = np.minimum(start + sizes[tile] + 1, "


class TritonPrefixIsReadTwice(TritonMutant):
    module, old, new = "work", "start = np.full_like(end, shared)", "start = np.zeros_like(end)"


class TritonSplitsByTheTablesWidth(TritonMutant):
    module, old, new = (
        "plan",
        "step=self.configuration.block_n,",
        "step=self.configuration.block_n * block_tables.shape[1],",
    )


class TritonEmptySplitsShiftByInfinity(TritonMutant):
    module, old, new = "combine", 'tl.where(new_maximum == float("-inf"), 0.0, new_maximum)', "new_maximum"


class TritonSplitsWeighTheSame(TritonMutant):
    module, old, new = "combine", "weights = tl.exp2(logits - shift)", "weights = tl.where(exists, 1.0, 0.0)"


class TritonMergedLseInBaseTwo(TritonMutant):
    module, old, new = "combine", "(maximum + tl.log2(divisor)) * LN_2", "maximum + tl.log2(divisor)"


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
        Wrong(TritonBlocksOf16, "G12", "sgl-project/sglang#32902", "16 tokens a block, whatever the pool says"),
        Wrong(TritonUnownedRowsAreLoaded, "G2", "Dao-AILab/flash-attention#2374", "the whole tile of V is loaded"),
        Wrong(TritonDimsAreNotMasked, "G2", "vllm-project/vllm#9014", "lanes past the head dim are loaded"),
        Wrong(TritonSumIsNotRescaled, "G18", "ours", "the sum of weights keeps an old maximum"),
        Wrong(TritonOutputIsNotRescaled, "G18", "ours", "the output keeps an old maximum"),
        Wrong(TritonEmptyRowsShiftByInfinity, "G6", "vllm-project/vllm#39148", "minus infinity minus itself"),
        Wrong(TritonLseWithoutTheMaximum, "G1", "ours", "the LSE leaves out what was subtracted"),
        Wrong(TritonLseInBaseTwo, "G1", "ours", "the LSE is a logarithm to base 2"),
        Wrong(TritonOffsetsWrap, "F3", "ours", "block id times stride in 31 bits"),
        Wrong(TritonCapIsLeftOut, "G13", "ours", "the soft cap is divided by and multiplied with"),
        Wrong(TritonWeightsInBaseTwo, "G1", "ours", "weights are 2^s instead of e^s"),
        Wrong(TritonBoundaryIncluded, "G2", "ours", "the boundary test is <= for <"),
        Wrong(TritonLastTileIsLost, "G9", "ours", "a tile that holds one token is left out"),
        Wrong(TritonHiddenScoresAreFinite, "G6", "ours", "a hidden score is -1e4"),
        Wrong(TritonValuesWithTheStrideOfKeys, "G13", "local-inference-lab/vllm#17", "one offset serves two tensors"),
        Wrong(TritonOwnTokenIsHidden, "G19", "ours", "a query does not see its own token"),
        Wrong(TritonWindowIsOneWider, "G11", "ours", "the window holds one token more"),
        Wrong(TritonRowsAndHeadsSwapped, "G19", "ours", "rows of a packed group are counted as heads"),
        Wrong(TritonScaleOfKeysTwice, "Q1", "ours", "the scale of the keys is applied twice"),
        # Wrong(TritonScaleOfTheFirstHead, "Q1", "ours", "all heads have the first one's scale"),
        # Wrong(TritonSinkInEverySplit, "G9", "ours", "the sink counts in every split and in the merge"),
        Wrong(TritonSplitsShareOnePlace, "G9", "ours", "the splits of a row overwrite one another"),
        Wrong(TritonTilesOfRowsAreLost, "G19", "ours", "the last rows of a long prompt are not computed"),
        Wrong(TritonVisibleRowsAreCountedShort, "G19", "ours", "the last key of a tile of rows is left out"),
        Wrong(TritonWindowStartsOneLate, "G11", "ours", "work begins behind the window's first token"),
        Wrong(TritonSplitsOverlap, "G9", "ours", "a split reads the first token of the next"),
        # Wrong(TritonPrefixIsReadTwice, "G9", "ours", "the common prefix is read with its own rows too"),
        # Wrong(TritonSplitsByTheTablesWidth, "G17", "ours", "splits are planned from the width of the table"),
        # Wrong(TritonEmptySplitsShiftByInfinity, "G9", "ours", "a merge of nothing but empty splits"),
        Wrong(TritonSplitsWeighTheSame, "G9", "ours", "the merge takes the mean of the splits"),
        # Wrong(TritonMergedLseInBaseTwo, "G9", "ours", "the merged LSE is a logarithm to base 2"),
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
