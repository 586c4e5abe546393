"""Dense attention in float64 and its error budget, vectorised: the torch twin of ``kvproof_reference``.

The standard-library oracle is the truth, and its docstrings derive every term; this one serves longer contexts. A test
holds the two equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.arithmetic import Arithmetic
from kvproof_reference.formats import number_format

LAMBDA = 5 / math.sqrt(3)
"""Five standard deviations of an error that is at most uniform on ±1."""


@dataclass(frozen=True)
class Attended:
    """What the query rows of one sequence must give, and how far a right kernel may be off."""

    out: torch.Tensor
    """[num_queries, num_q_heads, value_dim] float64"""
    lse: torch.Tensor
    """[num_queries, num_q_heads] float64, natural logarithm"""
    out_bound: torch.Tensor
    lse_bound: torch.Tensor


@dataclass(frozen=True)
class Head:
    """Every quantity of one head on the way to its output, [num_queries, context] unless said otherwise."""

    scores: torch.Tensor
    """0 where not visible"""
    visible: torch.Tensor
    exponentials: torch.Tensor
    """p̃ = exp(score - peak), 0 where not visible"""
    sizes: torch.Tensor
    """S: scale·√Σ(q·k)², the size of a score's terms"""
    values: torch.Tensor
    """[context, value_dim]"""
    head_dim: int

    @property
    def peak(self) -> torch.Tensor:
        """[num_queries, 1]; 0 for a row that sees nothing"""
        return peak_of(self.scores, self.visible)

    @property
    def denominator(self) -> torch.Tensor:
        """[num_queries, 1]; 1 for a row that sees nothing"""
        return torch.where(self.visible.any(1, keepdim=True), self.exponentials.sum(1, keepdim=True), 1.0)

    @property
    def weights(self) -> torch.Tensor:
        return self.exponentials / self.denominator

    @property
    def out(self) -> torch.Tensor:
        return self.weights @ self.values

    @property
    def lse(self) -> torch.Tensor:
        """[num_queries]"""
        finite = (self.peak + self.denominator.log()).squeeze(1)
        return torch.where(self.visible.any(1), finite, -math.inf)


def attend_dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec, arithmetic: Arithmetic
) -> Attended:
    """Attention of one sequence and its budget.

    Args:
        query: [num_queries, num_q_heads, head_dim]; row i stands at position context - num_queries + i.
        keys, values: [context, num_kv_heads, head_dim or value_dim], in order of position.
    """
    heads = [
        head_of(query[:, head], keys[:, head // spec.group_size], values[:, head // spec.group_size], spec.scale_value)
        for head in range(spec.num_q_heads)
    ]
    parts = [(head.out, head.lse, out_bound(head, arithmetic), lse_bound(head, arithmetic)) for head in heads]
    return Attended(*(torch.stack(part, dim=1) for part in zip(*parts, strict=True)))


def head_of(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> Head:
    """Scores and weights of one head: query [num_queries, head_dim], keys and values [context, dim]."""
    q, k = query.double().cpu(), keys.double().cpu()
    visible = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril(k.shape[0] - q.shape[0])
    scores = torch.where(visible, q @ k.T * scale, 0.0)
    exponentials = torch.where(visible, (scores - peak_of(scores, visible)).exp(), 0.0)
    sizes = abs(scale) * (q.square() @ k.square().T).sqrt()
    return Head(scores, visible, exponentials, sizes, values.double().cpu(), q.shape[1])


def peak_of(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    if not scores.shape[1]:
        return scores.new_zeros(scores.shape[0], 1)
    peak = scores.masked_fill(~visible, -math.inf).amax(1, keepdim=True)
    return torch.where(peak.isfinite(), peak, 0.0)


def out_bound(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """B of ``kvproof_reference.budget``, [num_queries, value_dim]."""
    out, magnitude = head.out, head.values.abs()
    spread = (head.values[None] - out[:, None]).abs()  # [num_queries, context, value_dim]
    mass = head.weights @ magnitude
    bound = output_rounding(out, arithmetic)
    bound += weight_rounding(head, torch.maximum(magnitude[None], spread), arithmetic)
    bound += torch.einsum("qt,qtd->qd", score_errors(head, arithmetic), spread)
    bound += roundoff(arithmetic) * drift(head, arithmetic) * mass
    bound += underflow(head, arithmetic)
    partials = number_format(arithmetic.partials)
    if partials.unit_roundoff > roundoff(arithmetic):
        bound += partials.unit_roundoff * mass + partials.smallest_subnormal / 2
    return bound + (tf32_values(head) if arithmetic.tf32 else 0.0)


def lse_bound(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """[num_queries]; a row that sees nothing is exact."""
    lse = torch.where(head.visible.any(1), head.lse, 0.0)
    bound = score_errors(head, arithmetic).sum(1)
    bound += roundoff(arithmetic) * (2 * lse.abs() + drift(head, arithmetic).squeeze(1))
    if arithmetic.rounded_sum:
        bound += weight_rounding(head, torch.ones(*head.scores.shape, 1, dtype=torch.float64), arithmetic).squeeze(1)
    return torch.where(head.visible.any(1), bound, 0.0)


def roundoff(arithmetic: Arithmetic) -> float:
    return number_format(arithmetic.accumulator).unit_roundoff


def drift(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """[num_queries, 1]: roundings of a running sum, in units of the accumulator's."""
    num_visible = head.visible.sum(1, keepdim=True).double()
    return 3 * (num_visible / arithmetic.tile + arithmetic.tile).sqrt() + 4


def output_rounding(out: torch.Tensor, arithmetic: Arithmetic) -> torch.Tensor:
    output = number_format(arithmetic.output)
    times = 2 if arithmetic.output_rounding == "toward_zero" else 1
    return times * (output.unit_roundoff * out.abs() + output.smallest_subnormal / 2)


def weight_rounding(head: Head, reach: torch.Tensor, arithmetic: Arithmetic) -> torch.Tensor:
    """Of P, with ``reach`` [num_queries, context, channels] what an error of 1 in a weight does; ties add up first."""
    names = [arithmetic.p, *(["tf32"] if arithmetic.tf32 else [])]
    weights = max((number_format(name) for name in names), key=lambda each: each.unit_roundoff)
    error = (weights.unit_roundoff * head.exponentials).clamp(min=weights.smallest_subnormal / 2)
    error = torch.where(head.visible, error / head.denominator, 0.0)[..., None] * reach
    return LAMBDA * sum_ties(error, head.scores).square().sum(1).sqrt()


def sum_ties(error: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Sums of ``error`` [num_queries, context, channels] over tokens of one row with equal scores, zeros elsewhere."""
    ordered, order = scores.sort(1)
    starts = torch.ones_like(ordered, dtype=torch.long)
    starts[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).long()
    group = torch.empty_like(order).scatter_(1, order, starts.cumsum(1) - 1)
    return torch.zeros_like(error).scatter_add_(1, group[..., None].expand_as(error), error)


def score_errors(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """[num_queries, context]: p·(u·a + λ/√3·u_q·S)."""
    magnitude = head.scores.abs()
    steps = math.sqrt(head.head_dim) * (head.sizes + magnitude) + 4 * (magnitude + head.peak.abs()) + 2
    operand = number_format("tf32").unit_roundoff if arithmetic.tf32 else 0.0
    operand += number_format(arithmetic.query).unit_roundoff if arithmetic.prescaled_q else 0.0
    return head.weights * (roundoff(arithmetic) * steps + LAMBDA * operand * head.sizes)


def underflow(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    flushed = number_format(arithmetic.accumulator).smallest_normal
    return flushed * (head.visible.double() @ (head.values.abs() + 1)) / head.denominator


def tf32_values(head: Head) -> torch.Tensor:
    """Equal magnitudes of V are rounded alike, so that their weights add up before they are squared."""
    columns = []
    for column in head.values.abs().T:
        magnitude, group = column.unique(return_inverse=True)
        weight = torch.zeros(head.weights.shape[0], len(magnitude), dtype=torch.float64)
        columns.append((weight.index_add_(1, group, head.weights) * magnitude).square().sum(1).sqrt())
    return LAMBDA * number_format("tf32").unit_roundoff * torch.stack(columns, dim=1)
