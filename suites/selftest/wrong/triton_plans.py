"""How our Triton attention is cut into work items and put together again, with one line changed."""

from __future__ import annotations

from selftest.wrong.catalogue import Wrong
from selftest.wrong.mutated_triton import TritonMutant


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
        "step=8 * block_tables.shape[1],",
    )


class TritonSplitsWeighTheSame(TritonMutant):
    module, old, new = "combine", "weights = tl.exp2(logits - shift)", "weights = tl.where(exists, 1.0, 0.0)"


class TritonMergeStopsAfterOneTile(TritonMutant):
    module, old, new = "combine", "range(first, end, BLOCK_P)", "range(first, min(end, first + BLOCK_P), BLOCK_P)"


class TritonMergedOutputIsNotRescaled(TritonMutant):
    module, old, new = "combine", "accumulator = accumulator * rescale", "accumulator = accumulator"


class TritonPrefixGoesBeyondTheContexts(TritonMutant):
    """Down to the end of its last block, which no sequence has reached."""

    module, old, new = "work", "min(common_prefix_len, int(positions.max(initial=-1)) + 1)", "common_prefix_len"


class TritonReuseKeepsThePartsOfTheFirst(TritonMutant):
    module, old, new = "buffers", "work.positions, work.partial_start])", (
        "work.positions, self.work.partial_start if self.work.partial_start.any() else work.partial_start])"
    )  # fmt: skip


class TritonMergedLseInBaseTwo(TritonMutant):
    module, old, new = "combine", "(maximum + tl.log2(divisor)) * LN_2", "maximum + tl.log2(divisor)"


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(TritonSinkInEverySplit, "G9", "ours", "the sink counts in every split and in the merge"),
        Wrong(TritonSplitsShareOnePlace, "G9", "ours", "the splits of a row overwrite one another"),
        Wrong(TritonTilesOfRowsAreLost, "G19", "ours", "the last rows of a long prompt are not computed"),
        Wrong(TritonVisibleRowsAreCountedShort, "G19", "ours", "the last key of a tile of rows is left out"),
        Wrong(TritonWindowStartsOneLate, "G11", "ours", "work begins behind the window's first token"),
        Wrong(TritonSplitsOverlap, "G9", "ours", "a split reads the first token of the next"),
        Wrong(TritonPrefixIsReadTwice, "G21", "ours", "the common prefix is read with its own rows too"),
        Wrong(TritonSplitsByTheTablesWidth, "G17", "ours", "splits are planned from the width of the table"),
        Wrong(TritonSplitsWeighTheSame, "G9", "ours", "the merge takes the mean of the splits"),
        Wrong(TritonMergeStopsAfterOneTile, "G9", "ours", "of many splits the first few are merged"),
        Wrong(TritonMergedOutputIsNotRescaled, "G9", "ours", "merging many splits keeps an old maximum"),
        Wrong(TritonPrefixGoesBeyondTheContexts, "G21", "ours", "the prefix is read to the end of its last block"),
        Wrong(TritonReuseKeepsThePartsOfTheFirst, "G14", "ours", "a plan in an earlier one's buffers merges its rows"),
        Wrong(TritonMergedLseInBaseTwo, "G9", "ours", "the merged LSE is a logarithm to base 2"),
    )
}
