"""Wrong kernels that are right with each option alone, and wrong where two meet, or at the edge of one."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from kvproof_impls.contract import AttentionSpec
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel, distance

Tensor = torch.Tensor


class AlibiBeforeTheSoftCap(RightKernel):
    """The bias is squeezed with the score."""

    def scores(self, spec: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
        if spec.softcap is None or spec.alibi_slopes is None:
            return super().scores(spec, query, key)
        scores = super().scores(replace(spec, softcap=None), query, key)
        return spec.softcap * (scores / spec.softcap).tanh()


class SinksForgottenUnderAWindow(RightKernel):
    def sinks(self, spec: AttentionSpec, scores: Tensor) -> Tensor:
        return super().sinks(spec if spec.window is None else replace(spec, sinks=None), scores)


class SinksOfEmptyRowsAreForgotten(RightKernel):
    """A row without keys is left out before the sinks come in."""

    def softmax(self, spec: AttentionSpec, scores: Tensor, visible: Tensor, value: Tensor) -> Partial:
        out, lse = super().softmax(spec, scores, visible, value)
        return out, lse.masked_fill(~visible.any(1)[:, None], -math.inf)


class FarWindowsLoseTheEndOfABlock(RightKernel):
    """Past 128 tokens a window that begins at the last slot of a block begins at the next block."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> Tensor:
        right = super().visible(spec, query_len, num_keys)
        if spec.window is None:
            return right
        begins = distance(query_len, num_keys) == 1 - spec.window
        last_of_a_far_block = (torch.arange(num_keys) % 16 == 15) & (torch.arange(num_keys) >= 128)
        return right & ~(begins & last_of_a_far_block)


class WindowOfOneLosesItsToken(RightKernel):
    """A split is planned for the keys before the query's own: with a window of 1 far from the start there are none."""

    def visible(self, spec: AttentionSpec, query_len: int, num_keys: int) -> Tensor:
        right = super().visible(spec, query_len, num_keys)
        return right & ~(distance(query_len, num_keys) == 0) if spec.window == 1 and num_keys > 256 else right


class DraftsOfAnOddGroup(RightKernel):
    """Heads of a group are taken four at a time where drafts are verified, and what is left over reads the first."""

    def scores(self, spec: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
        if 1 < len(query) <= 8 and spec.group_size > 4:
            of_group = torch.arange(spec.num_q_heads) % spec.group_size
            left_over = of_group >= spec.group_size // 4 * 4
            query = query[:, torch.arange(spec.num_q_heads) - of_group * left_over]
        return super().scores(spec, query, key)


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(AlibiBeforeTheSoftCap, "G13", "ours", "the cap squeezes the bias as well"),
        Wrong(SinksForgottenUnderAWindow, "G13", "ours", "the windowed path has no sinks"),
        Wrong(SinksOfEmptyRowsAreForgotten, "G6", "ours", "a row without keys has no LSE, though it has a sink"),
        Wrong(FarWindowsLoseTheEndOfABlock, "G11", "ours", "a far window loses a key at the end of a block"),
        Wrong(WindowOfOneLosesItsToken, "G11", "ours", "a far window of one token has none"),
        Wrong(DraftsOfAnOddGroup, "G18", "ours", "drafts of a group that is no multiple of 4 share a query"),
    )
}
