"""Our Triton attention kernel with one line changed."""

from __future__ import annotations

from selftest.wrong.catalogue import Wrong
from selftest.wrong.mutated_triton import TritonMutant


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


class TritonRestOfTheKeysIsTheirStart(TritonMutant):
    """A latent key is multiplied in two parts, and the second begins where the first does."""

    module, old, new = (
        "attention",
        "stride_key_block, stride_key_offset, rest_dims, head_dim",
        "stride_key_block, stride_key_offset, rest_dims - BLOCK_D, head_dim",
    )


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
        Wrong(TritonRestOfTheKeysIsTheirStart, "G13", "ours", "the rotary dims of a latent key are its first ones"),
        Wrong(TritonOwnTokenIsHidden, "G19", "ours", "a query does not see its own token"),
        Wrong(TritonWindowIsOneWider, "G11", "ours", "the window holds one token more"),
        Wrong(TritonRowsAndHeadsSwapped, "G19", "ours", "rows of a packed group are counted as heads"),
        Wrong(TritonScaleOfKeysTwice, "Q1", "ours", "the scale of the keys is applied twice"),
        Wrong(TritonScaleOfTheFirstHead, "Q1", "ours", "all heads have the first one's scale"),
    )
}
