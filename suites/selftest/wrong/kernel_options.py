"""Wrong kernels that take an option of the spec and do something else: cap, bias, sinks, scales, LSE."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_kernel import Partial, RightKernel, distance


class SoftCapIgnored(RightKernel):
    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return super().scores(replace(spec, softcap=None), query, key)


class SoftCapAfterTheMask(RightKernel):
    """tanh(-inf) is -1: what is hidden comes back with a score of -cap."""

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        if spec.softcap is None:
            return super().softmax(spec, scores, visible, value)
        return super().softmax(spec, scores.masked_fill(~visible, -spec.softcap), torch.ones_like(visible), value)


class SoftCapBeforeTheScale(RightKernel):
    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if spec.softcap is None:
            return super().scores(spec, query, key)
        return super().scores(replace(spec, scale=1.0), query, key) * spec.scale_value


class AlibiIgnored(RightKernel):
    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return super().scores(replace(spec, alibi_slopes=None), query, key)


class AlibiDistanceOffByOne(RightKernel):
    """The same added to every score: softmax does not see it, the LSE does."""

    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        slopes = 0.0 if spec.alibi_slopes is None else torch.tensor(spec.alibi_slopes)[:, None, None]
        return super().scores(spec, query, key) + slopes


class AlibiFromTheChunk(RightKernel):
    """The query's position counts from the start of its chunk, and distances behind it are taken as absolute."""

    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = super().scores(replace(spec, alibi_slopes=None), query, key)
        if spec.alibi_slopes is None:
            return scores
        away = (distance(len(query), len(key)) + len(key) - len(query)).abs()
        return scores - torch.tensor(spec.alibi_slopes)[:, None, None] * away


class SinksIgnored(RightKernel):
    def sinks(self, spec: AttentionSpec, scores: torch.Tensor) -> torch.Tensor:
        return super().sinks(replace(spec, sinks=None), scores)


class SinksOfTheKeyHead(RightKernel):
    """One sink for all query heads of a group."""

    def sinks(self, spec: AttentionSpec, scores: torch.Tensor) -> torch.Tensor:
        if spec.sinks is None:
            return super().sinks(spec, scores)
        shared = tuple(spec.sinks[head - head % spec.group_size] for head in range(spec.num_q_heads))
        return super().sinks(replace(spec, sinks=shared), scores)


class SinksMissingFromTheLse(RightKernel):
    def softmax(self, spec: AttentionSpec, *args: torch.Tensor) -> Partial:
        return super().softmax(spec, *args)[0], super().softmax(replace(spec, sinks=None), *args)[1]


class ScaleOffByOnePercent(RightKernel):
    def scale(self, spec: AttentionSpec) -> float:
        return spec.scale_value * 1.01


class ScaleOfTheHeadDimAlways(RightKernel):
    def scale(self, spec: AttentionSpec) -> float:
        return 1 / math.sqrt(spec.head_dim)


class ScaleOfThePaddedHeadDim(RightKernel):
    """1/sqrt of the head dim after padding to a power of two."""

    def scale(self, spec: AttentionSpec) -> float:
        padded = 1 << (spec.head_dim - 1).bit_length()
        return 1 / math.sqrt(padded) if spec.scale is None else spec.scale


class LseInBaseTwo(RightKernel):
    def softmax(self, spec: AttentionSpec, *args: torch.Tensor) -> Partial:
        out, lse = super().softmax(spec, *args)
        return out, lse / math.log(2)


class LseWithoutTheMaximum(RightKernel):
    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        out, lse = super().softmax(spec, scores, visible, value)
        return out, lse - scores.masked_fill(~visible, -math.inf).amax(2).T


class LseHeadsFirst(RightKernel):
    """[num_q_heads, num_tokens], handed over as [num_tokens, num_q_heads]."""

    def plan(self, spec: AttentionSpec, *args: Any) -> Any:
        launch = super().plan(spec, *args)

        def transposed(query: torch.Tensor, pools: KVPools, out: torch.Tensor | None = None) -> Any:
            result = launch(query, pools, out)
            return (result[0], result[1].T.reshape(result[1].shape)) if spec.return_lse else result

        return transposed


class LseSharesTheScratchOfTheOutput(RightKernel):
    """Scratch is sized for the output alone; with an LSE the last row of the output is overwritten."""

    def plan(self, spec: AttentionSpec, *args: Any) -> Any:
        launch = super().plan(spec, *args)

        def overflowing(query: torch.Tensor, pools: KVPools, out: torch.Tensor | None = None) -> Any:
            result = launch(query, pools, out)
            if spec.return_lse:
                result[0][-1, 0, : spec.num_q_heads] = result[1][-1]
            return result

        return overflowing


class PlusInfinityForARowWithoutKeys(RightKernel):
    def softmax(self, spec: AttentionSpec, *args: torch.Tensor) -> Partial:
        out, lse = super().softmax(spec, *args)
        return out, lse.masked_fill(lse == -math.inf, math.inf)


class KScaleIgnored(RightKernel):
    def gather(self, spec: AttentionSpec, pools: KVPools, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().gather(replace(spec, k_scale=1.0), pools, slots)


class VScaleForBoth(RightKernel):
    def gather(self, spec: AttentionSpec, pools: KVPools, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().gather(replace(spec, k_scale=spec.v_scale), pools, slots)


class CodesWithoutScalesBehindAPrefix(RightKernel):
    """Only a chunk that resumes on cached tokens takes the codes for what they mean."""

    def scores(self, spec: AttentionSpec, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = super().scores(spec, query, key)
        return scores / spec.k_scale if 1 < len(query) < len(key) else scores


class ScaleAppliedInTheKernelAndInTheScores(RightKernel):
    def scale(self, spec: AttentionSpec) -> float:
        return spec.scale_value * spec.k_scale


class CastWithoutAClamp(RightKernel):
    def encode(self, rows: torch.Tensor, pool: torch.Tensor, scale: float) -> torch.Tensor:
        right = super().encode(rows, pool, scale)
        if pool.element_size() > 1:
            return right
        too_large = (rows.float() / scale).abs() > torch.finfo(pool.dtype).max
        return right.float().masked_fill(too_large, math.nan).to(pool.dtype)


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(SoftCapIgnored, "G13", "sgl-project/sglang#33915", "the cap is accepted and dropped"),
        Wrong(SoftCapAfterTheMask, "G13", "ours", "what is hidden comes back with a score of -cap"),
        Wrong(SoftCapBeforeTheScale, "G13", "ours", "the cap is put on scores that are not scaled yet"),
        Wrong(AlibiIgnored, "G13", "vllm-project/vllm#57614", "the bias is accepted and dropped"),
        Wrong(AlibiDistanceOffByOne, "G13", "vllm-project/vllm#945", "every bias is one slope too large"),
        Wrong(AlibiFromTheChunk, "G13", "ours", "the bias counts from the chunk's first token"),
        Wrong(SinksIgnored, "G13", "ours", "the sinks are accepted and dropped"),
        Wrong(SinksOfTheKeyHead, "G13", "ours", "all query heads of a group share a sink"),
        Wrong(SinksMissingFromTheLse, "G13", "ours", "the LSE leaves the sinks out, and a merge forgets them"),
        Wrong(ScaleOffByOnePercent, "G1", "ours", "1 % that no fixed tolerance sees"),
        Wrong(ScaleOfTheHeadDimAlways, "G13", "ours", "a scale that is given is ignored"),
        Wrong(ScaleOfThePaddedHeadDim, "G10", "ours", "the scale of the head dim after padding"),
        Wrong(LseInBaseTwo, "G1", "sgl-project/sglang#40903", "the LSE is a binary logarithm"),
        Wrong(LseWithoutTheMaximum, "G1", "ours", "the LSE leaves out what was subtracted"),
        Wrong(LseHeadsFirst, "G1", "vllm-project/vllm#57012", "the LSE is laid out by head"),
        Wrong(
            LseSharesTheScratchOfTheOutput, "G1", "vllm-project/vllm#50781", "the LSE needs scratch that nobody planned"
        ),
        Wrong(PlusInfinityForARowWithoutKeys, "G6", "Dao-AILab/flash-attention#978", "an LSE of plus infinity"),
        Wrong(KScaleIgnored, "Q1", "flashinfer-ai/flashinfer#1023", "a scale given is swallowed"),
        Wrong(VScaleForBoth, "Q1", "ours", "keys are scaled as values are"),
        Wrong(CodesWithoutScalesBehindAPrefix, "Q1", "vllm-project/vllm#4381", "a chunk behind a prefix lacks scales"),
        Wrong(ScaleAppliedInTheKernelAndInTheScores, "Q1", "ours", "k_scale is applied twice"),
        Wrong(CastWithoutAClamp, "Q4", "flashinfer-ai/flashinfer#5283", "a value beyond the range becomes NaN"),
    )
}
