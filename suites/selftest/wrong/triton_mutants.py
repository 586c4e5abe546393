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

CHAIN = ("steps", "decode", "prefill", "cache_write", "block_copy")
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


class TritonWeightsInBaseTwo(TritonMutant):
    module, old, new = "decode", "lse, scale * LOG2_E)", "lse, scale)"


class TritonBoundaryIncluded(TritonMutant):
    module, old, new = "decode", "owned = tokens < context_len", "owned = tokens <= context_len"


class TritonLastTileIsLost(TritonMutant):
    module, old, new = "decode", "range(0, context_len, BLOCK_N)", "range(0, context_len - 1, BLOCK_N)"


class TritonValuesWithTheStrideOfKeys(TritonMutant):
    module, old, new = (
        "prefill",
        "stride_value_block, stride_value_offset, value_dims",
        ("stride_key_block, stride_key_offset, value_dims"),
    )


class TritonOwnTokenIsHidden(TritonMutant):
    module, old, new = "prefill", "tokens[None, :] <= positions", "tokens[None, :] < positions"


class TritonRowsAndHeadsSwapped(TritonMutant):
    module, old, new = (
        "prefill",
        "positions = context_len - query_len + pairs // group_size",
        ("positions = context_len - query_len + pairs % query_len"),
    )


class TritonTilesOfRowsAreLost(TritonMutant):
    """The grid counts pairs of row and head, the test for its end rows."""

    module, old, new = "prefill", "if tile * BLOCK_M >= query_len * group_size:", "if tile * BLOCK_M >= query_len:"


class TritonVisibleRowsAreCountedShort(TritonMutant):
    module, old, new = "prefill", "+ last_pair // group_size + 1", "+ last_pair // group_size"


class TritonSlotZeroIsNowhere(TritonMutant):
    module, old, new = "cache_write", "goes = slots >= 0", "goes = slots > 0"


class TritonValuesGoWhereKeysGo(TritonMutant):
    module, old, new = "cache_write", "offsets * stride_value_offset + head", "offsets * stride_key_offset + head"


class TritonHeadsOfTheSourceArePacked(TritonMutant):
    module, old, new = "cache_write", "tokens * stride_key + head", "tokens * head_dim * tl.num_programs(1) + head"


class TritonCopyEndsAfterOneTile(TritonMutant):
    module, old, new = "block_copy", "range(0, block_size, BLOCK_T)", "range(0, BLOCK_T, BLOCK_T)"


class TritonCopyFromTheDestination(TritonMutant):
    module, old, new = "block_copy", "tl.load(value_pool + source", "tl.load(value_pool + destination"


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
        Wrong(TritonWeightsInBaseTwo, "G1", "ours", "weights are 2^s instead of e^s"),
        Wrong(TritonBoundaryIncluded, "G19", "ours", "the boundary test is <= for <"),
        Wrong(TritonLastTileIsLost, "G9", "ours", "a tile that holds one token is left out"),
        Wrong(TritonValuesWithTheStrideOfKeys, "G13", "local-inference-lab/vllm#17", "one offset serves two tensors"),
        Wrong(TritonOwnTokenIsHidden, "G19", "ours", "a query does not see its own token"),
        Wrong(TritonRowsAndHeadsSwapped, "G19", "ours", "rows of a packed group are counted as heads"),
        Wrong(TritonTilesOfRowsAreLost, "G19", "ours", "the last rows of a long prompt are not computed"),
        Wrong(TritonVisibleRowsAreCountedShort, "G19", "ours", "the last key of a tile of rows is left out"),
        Wrong(TritonSlotZeroIsNowhere, "D2", "ours", "the first slot of the pool is never written"),
        Wrong(TritonValuesGoWhereKeysGo, "F2", "ours", "values are stored with the strides of the keys"),
        Wrong(TritonHeadsOfTheSourceArePacked, "F2", "ours", "the stride of the source is ignored"),
        Wrong(TritonCopyEndsAfterOneTile, "F1", "ours", "the end of a large block is not copied"),
        Wrong(TritonCopyFromTheDestination, "F1", "ours", "values are copied onto themselves"),
    )
}
