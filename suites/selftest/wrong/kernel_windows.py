"""Wrong sliding windows: a key too many or too few at either edge, in a chunk, or under a packed group."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvproof_impls.contract import AttentionSpec
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel


class WindowOfOneMore(RightKernel):
    """(w, w) keys to the left, and the query's own on top."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        return super().visible(widened(spec, 1), query_len, num_keys)


class WindowByWholeBlocks(RightKernel):
    """The first block that the window touches is read whole."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        if spec.window is None:
            return super().visible(spec, query_len, num_keys)
        positions, keys = torch.arange(num_keys - query_len, num_keys), torch.arange(num_keys)
        first = (positions - spec.window + 1).clamp(min=0) // spec.block_size * spec.block_size
        return super().visible(replace(spec, window=None), query_len, num_keys) & (keys[None] >= first[:, None])


class WindowOfTheFirstRowForTheChunk(RightKernel):
    """Every row of a chunk sees from where the first one's window starts."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        wide = super().visible(replace(spec, window=None), query_len, num_keys)
        return wide & super().visible(spec, query_len, num_keys)[0].logical_or(
            torch.arange(num_keys) > num_keys - query_len
        )


class WindowIgnoredInPrefill(RightKernel):
    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        return super().visible(replace(spec, window=None) if query_len > 1 else spec, query_len, num_keys)


class RingShorterThanTheChunk(RightKernel):
    """A ring of two windows: the end of a long chunk overwrites keys that its beginning still needs."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        right = super().visible(spec, query_len, num_keys)
        if spec.window is not None:
            right[:, : max(0, num_keys - 2 * spec.window)] = False
        return right


class PaddingOfTheChunkEvictsTheWindow(RightKernel):
    """A chunk is padded to 16 rows, and each row of padding pushes one key out of the window."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        right = super().visible(spec, query_len, num_keys)
        if spec.window is not None and query_len > 1:
            right[:, : max(0, num_keys - spec.window + -query_len % 16)] = False
        return right


class WindowCountsPackedHeads(RightKernel):
    """The heads of a group are packed as rows, and the window is counted in packed rows."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        window = None if spec.window is None else max(1, spec.window // spec.group_size)
        return super().visible(replace(spec, window=window), query_len, num_keys)


class WindowStartsAtStaleTokens(RightKernel):
    """Once the context is longer than the window, it is counted from the start and not from the end."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> torch.Tensor:
        right = super().visible(spec, query_len, num_keys)
        if spec.window is not None and num_keys > spec.window:
            right[-1] = torch.arange(num_keys) < spec.window
        return right


class OneRowOfASpeculativeWindow(RightKernel):
    """Of eight query rows behind more tokens than the window, one row of one head sees one key too many."""

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        out, lse = super().softmax(spec, scores, visible, value)
        if spec.window is not None and visible.shape[0] == 8 and visible.shape[1] > spec.window:
            wider = super().visible(widened(spec, 1), *visible.shape)
            out[3, -1] = super().softmax(spec, scores, wider, value)[0][3, -1]
        return out, lse


def widened(spec: AttentionSpec, more: int) -> AttentionSpec:
    return spec if spec.window is None else replace(spec, window=spec.window + more)


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(WindowOfOneMore, "G11", "huggingface/transformers#39408", "one key too many before the window"),
        Wrong(WindowByWholeBlocks, "G11", "ours", "the block that the window starts in is read from its first slot"),
        Wrong(
            WindowOfTheFirstRowForTheChunk,
            "G11",
            "pytorch/executorch#21857",
            "all rows of a chunk see the cache region of one",
        ),
        Wrong(WindowIgnoredInPrefill, "G11", "huggingface/transformers#41184", "a prompt has no window"),
        Wrong(RingShorterThanTheChunk, "G11", "pytorch/executorch#20346", "a chunk overwrites keys it still needs"),
        Wrong(PaddingOfTheChunkEvictsTheWindow, "G11", "cactus-compute/cactus#716", "padding rows push keys out"),
        Wrong(WindowCountsPackedHeads, "G11", "vllm-project/vllm#17476", "window and packed groups do not go together"),
        Wrong(WindowStartsAtStaleTokens, "G11", "huggingface/transformers#47911", "the window holds the oldest tokens"),
        Wrong(
            OneRowOfASpeculativeWindow,
            "G11",
            "flashinfer-ai/flashinfer#3864",
            "one row of one head, which a mean error hides",
        ),
    )
}
