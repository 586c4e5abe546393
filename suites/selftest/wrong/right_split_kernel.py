"""A right kernel that splits the context: each part by itself, then merged by log-sum-exp, as split-KV kernels do."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from kvproof_impls.contract import AttentionSpec
from selftest.wrong.right_kernel import Partial, RightKernel, peaks


class RightSplitKernel(RightKernel):
    split_len = 16
    """Tokens a split."""

    def softmax(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        peak = peaks(torch.cat([scores.masked_fill(~visible, -math.inf), self.sinks(spec, scores)], 2))
        scores = scores - peak  # so that a log-sum-exp near 0 is merged, whose rounding is small
        cuts = self.cuts(scores.shape[2])
        parts = [self.partial(spec, scores[..., cut], visible[:, cut], value[cut]) for cut in cuts]
        if spec.sinks is not None:
            nothing = torch.zeros_like(parts[0][0])
            parts.append((nothing, (self.sinks(spec, scores) - peak).squeeze(2).T))
        out, lse = self.merge(parts)
        return out, lse + peak.squeeze(2).T

    def cuts(self, num_keys: int) -> list[slice]:
        return [slice(start, start + self.split_len) for start in range(0, max(1, num_keys), self.split_len)]

    def partial(self, spec: AttentionSpec, scores: torch.Tensor, visible: torch.Tensor, value: torch.Tensor) -> Partial:
        """Of one cut; sinks are a part of their own."""
        return super().softmax(replace(spec, sinks=None), scores, visible, value)

    def merge(self, parts: list[Partial]) -> Partial:
        outs, lses = (torch.stack(part) for part in zip(*parts, strict=True))
        return (self.shares(lses)[..., None] * outs).sum(0), torch.logsumexp(lses, 0)

    def shares(self, lses: torch.Tensor) -> torch.Tensor:
        """What each part weighs, [num_parts, query_len, num_q_heads]; 0 for a part that saw no key."""
        return torch.where(lses == -math.inf, 0.0, (lses - torch.logsumexp(lses, 0)).exp())
