"""A right kernel, simulated: online softmax in tiles, split contexts, and every rounding where it is declared.

It stands for the kernels that no machine at hand can run: it rounds as they round, and in their order of summation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvproof_reference.arithmetic import Arithmetic

LOG2E = math.log2(math.e)

Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Running maximum [num_queries, 1], sum of weights [num_queries, 1], accumulator [num_queries, value_dim]; float32."""


@dataclass(frozen=True)
class Form:
    """What kernels do differently without changing what they declare."""

    num_splits: int = 1
    exponential: str = "exp"
    """"exp", "exp2" (of scores times log2 e), or "fma" (that product fused with the subtraction of the maximum)."""


def simulate(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    rounding: Arithmetic,
    form: Form,
    value_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [num_queries, value_dim], lse [num_queries]) of one head, causal: the queries are the last positions.

    Args:
        query: [num_queries, head_dim], keys: [context, head_dim], values: [context, value_dim], all as stored.
        value_scales: [context], where every token has its own.
    """
    scores = operand(scaled(query, scale, rounding), rounding) @ operand(keys.float(), rounding).T
    scores = scores if rounding.prescaled_q else scores * scale
    context = len(keys)
    hidden = torch.ones(scores.shape, dtype=torch.bool).triu(context - len(query) + 1)
    scores = scores.masked_fill(hidden, -math.inf)
    size = -(-context // form.num_splits)
    cuts = [slice(start, min(start + size, context)) for start in range(0, context, size)]
    owns = torch.ones(context) if value_scales is None else value_scales
    parts = [attend_split(scores[:, cut], values[cut], owns[cut], rounding, form) for cut in cuts]
    return merge(parts, rounding)


def scaled(query: torch.Tensor, scale: float, rounding: Arithmetic) -> torch.Tensor:
    return rounded(query.float() * scale, rounding.query) if rounding.prescaled_q else query.float()


def operand(matrix: torch.Tensor, rounding: Arithmetic) -> torch.Tensor:
    return rounded(matrix, "tf32") if rounding.tf32 else matrix


def rounded(numbers: torch.Tensor, name: str) -> torch.Tensor:
    """float32 numbers, rounded to the format ``name``; tf32 keeps 10 bits after the binary point, ties away from 0."""
    if name == "tf32":
        return ((numbers.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return numbers.to(getattr(torch, name)).float()


def attend_split(
    scores: torch.Tensor, values: torch.Tensor, owns: torch.Tensor, rounding: Arithmetic, form: Form
) -> Partial:
    peak = scores.new_full((len(scores), 1), -math.inf)
    total, acc = torch.zeros_like(peak), scores.new_zeros(len(scores), values.shape[1])
    ones = torch.ones_like(owns)
    by_weights, by_values = (owns, ones) if rounding.weights_take_scale else (ones, owns)
    values = operand(values.float() * by_values[:, None], rounding)
    for start in range(0, scores.shape[1], rounding.tile):
        tile = scores[:, start : start + rounding.tile]
        new_peak = torch.maximum(peak, tile.amax(1, keepdim=True))
        alpha = rescaling(peak, new_peak, form)
        weights = exponentials(tile, new_peak, form)
        kept = operand(rounded(weights * by_weights[start : start + rounding.tile], rounding.p), rounding)
        total = total * alpha + (kept if rounding.rounded_sum else weights).sum(1, keepdim=True)
        acc = acc * alpha + kept @ values[start : start + rounding.tile]
        peak = new_peak
    return peak, total, acc


def exponentials(scores: torch.Tensor, peak: torch.Tensor, form: Form) -> torch.Tensor:
    """exp(scores - peak) in float32, 0 for scores of -inf, also where the peak is -inf."""
    finite = torch.where(peak.isfinite(), peak, 0.0)
    if form.exponential == "exp":
        return (scores - finite).exp()
    if form.exponential == "exp2":
        return (scores * LOG2E - finite * LOG2E).exp2()
    fused = scores.double() * torch.tensor(LOG2E, dtype=torch.float32).double() - (finite * LOG2E).double()
    return fused.float().exp2()


def rescaling(peak: torch.Tensor, new_peak: torch.Tensor, form: Form) -> torch.Tensor:
    """Of the difference, as FlashAttention does it: exactly 1 while the maximum stays. Fused it would be off by a
    rounding of the maximum, the same in every tile, and drift out of the budget after some hundred tiles."""
    difference = torch.where(new_peak.isfinite(), peak - new_peak, 0.0)
    return difference.exp() if form.exponential == "exp" else (difference * LOG2E).exp2()


def merge(parts: list[Partial], rounding: Arithmetic) -> tuple[torch.Tensor, torch.Tensor]:
    peaks, totals, accs = (torch.stack(part) for part in zip(*parts, strict=True))
    peak = peaks.amax(0)
    shares = torch.where(totals > 0, (peaks - peak).exp() * totals, 0.0)
    outs = accs / totals.clamp(min=1e-38)
    outs = rounded(outs, rounding.partials) if len(parts) > 1 else outs
    total = shares.sum(0)
    out = (outs * shares).sum(0) / total
    return rounded(out, rounding.output), (peak + total.log()).squeeze(1)
