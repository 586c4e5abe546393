"""Wrong kernels that split the context and put the parts together wrongly."""

from __future__ import annotations

import torch

from kvproof_impls.contract import AttentionSpec
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial
from selftest.wrong.right_split_kernel import RightSplitKernel


class TheLastSplitIsLost(RightSplitKernel):
    """Right with one split."""

    def merge(self, parts: list[Partial]) -> Partial:
        return super().merge(parts[:-1] if len(parts) > 1 else parts)


class TheFirstSplitIsLost(RightSplitKernel):
    def merge(self, parts: list[Partial]) -> Partial:
        return super().merge(parts[1:] if len(parts) > 2 else parts)


class EverySplitWeighsAlike(RightSplitKernel):
    """The mean of the parts instead of their mean by weight."""

    def shares(self, lses: torch.Tensor) -> torch.Tensor:
        return torch.full_like(lses, 1 / len(lses))


class SharesInBaseTwo(RightSplitKernel):
    """Parts hand over natural logarithms, and the merge raises 2 to them."""

    def shares(self, lses: torch.Tensor) -> torch.Tensor:
        weights = torch.exp2(lses - lses.amax(0))
        return (weights / weights.sum(0)).nan_to_num(0)


class LseOfTheFirstSplit(RightSplitKernel):
    """The output is merged, the LSE is not."""

    def merge(self, parts: list[Partial]) -> Partial:
        return super().merge(parts)[0], parts[0][1]


class LseSwappedWhenSplit(RightSplitKernel):
    """Heads of a group change places in the LSE, as soon as there are two parts."""

    def merge(self, parts: list[Partial]) -> Partial:
        out, lse = super().merge(parts)
        return out, lse.flip(1) if len(parts) > 1 else lse


class TwoEmptySplitsGiveNan(RightSplitKernel):
    """-inf minus -inf: the merge of parts that saw no key."""

    def shares(self, lses: torch.Tensor) -> torch.Tensor:
        return (lses - torch.logsumexp(lses, 0)).exp()


class EmptySplitsCount(RightSplitKernel):
    """Always four parts, and one without tokens has an LSE of 0 where it must have -inf."""

    def cuts(self, num_keys: int) -> list[slice]:
        step = -(-max(1, num_keys) // 4)
        return [slice(i * step, (i + 1) * step) for i in range(4)]

    def partial(self, spec: AttentionSpec, scores: torch.Tensor, *args: torch.Tensor) -> Partial:
        out, lse = super().partial(spec, scores, *args)
        return (out, lse) if scores.shape[2] else (out, torch.zeros_like(lse))


class MaskOfTheFirstSplitForAll(RightSplitKernel):
    """Every part is masked as if it began at position 0."""

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        seen = torch.cat([visible[:, : cut.stop - cut.start] for cut in self.cuts(scores.shape[2])], 1)
        return super().softmax(spec, scores, seen[:, : scores.shape[2]], value)


class ASinkInEverySplit(RightSplitKernel):
    def merge(self, parts: list[Partial]) -> Partial:
        is_sink = parts[-1][0].abs().sum() == 0
        return super().merge(parts + parts[-1:] * (len(parts) - 2) if is_sink else parts)


class PartialsInTheTypeOfTheOutput(RightSplitKernel):
    """Parts are stored in float16, and nothing of it is declared."""

    def merge(self, parts: list[Partial]) -> Partial:
        return super().merge([(out.half().float(), lse) for out, lse in parts])


class OutputOfASplitByHead(RightSplitKernel):
    """As soon as there are two parts, rows and heads of the output change places."""

    def merge(self, parts: list[Partial]) -> Partial:
        out, lse = super().merge(parts)
        return (out.transpose(0, 1).reshape(out.shape) if len(parts) > 1 else out), lse


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(TheLastSplitIsLost, "G9", "Dao-AILab/flash-attention#1217", "right with one split, wrong with two"),
        Wrong(TheFirstSplitIsLost, "G9", "ours", "the split that holds the first keys is lost"),
        Wrong(EverySplitWeighsAlike, "G9", "sgl-project/sglang#2465", "parts are averaged without their weights"),
        Wrong(SharesInBaseTwo, "G9", "sgl-project/sglang#40903", "parts are weighed by 2^lse"),
        Wrong(LseOfTheFirstSplit, "G1", "vllm-project/vllm#22103", "the LSE of one part goes out as that of all"),
        Wrong(
            LseSwappedWhenSplit, "G1", "vllm-project/flash-attention#87", "the layout of the LSE changes with a split"
        ),
        Wrong(TwoEmptySplitsGiveNan, "G6", "flashinfer-ai/flashinfer#4051", "two empty parts merge to NaN"),
        Wrong(EmptySplitsCount, "G9", "ours", "parts without tokens weigh something"),
        Wrong(MaskOfTheFirstSplitForAll, "G18", "ours", "positions count from the split's first token"),
        Wrong(ASinkInEverySplit, "G13", "ours", "the sink counts once a split"),
        Wrong(PartialsInTheTypeOfTheOutput, "G1", "ours", "parts are rounded to 16 bits, and it is not declared"),
        Wrong(OutputOfASplitByHead, "G18", "Dao-AILab/flash-attention#2550", "the output of a split has wrong strides"),
    )
}
