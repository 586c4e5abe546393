"""Dense attention in float64 and its error budget, vectorised: the torch twin of ``kvproof_reference``.

The standard-library oracle is the truth, and its docstrings derive every term; this one serves longer contexts. A test
holds the two equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

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
    """Capped, then biased; 0 where not visible."""
    magnitudes: torch.Tensor
    """|capped score| + |bias|: the size at which a score is rounded."""
    visible: torch.Tensor
    sizes: torch.Tensor
    """S: scale·√Σ(q·k)², the size of the terms of a score."""
    values: torch.Tensor
    """[context, value_dim], v_scale applied."""
    head_dim: int
    sink: float | None = None
    value_scales: torch.Tensor | None = None
    """[context]: what of ``values`` is each token's own scale, where they have one."""

    @cached_property
    def peak(self) -> torch.Tensor:
        """[num_queries, 1]: the largest logit, the sink's included; 0 for a row that has none."""
        floor = self.scores.new_full((self.scores.shape[0], 1), -math.inf if self.sink is None else self.sink)
        peak = torch.cat([self.scores.masked_fill(~self.visible, -math.inf), floor], dim=1).amax(1, keepdim=True)
        return torch.where(peak.isfinite(), peak, 0.0)

    @cached_property
    def exponentials(self) -> torch.Tensor:
        """p̃ = exp(score - peak), 0 where not visible."""
        return torch.where(self.visible, (self.scores - self.peak).exp(), 0.0)

    @cached_property
    def sink_exponential(self) -> torch.Tensor:
        """[num_queries, 1]"""
        return torch.zeros_like(self.peak) if self.sink is None else (self.sink - self.peak).exp()

    @cached_property
    def has_logits(self) -> torch.Tensor:
        """[num_queries, 1]"""
        return self.visible.any(1, keepdim=True) | torch.tensor(self.sink is not None)

    @cached_property
    def denominator(self) -> torch.Tensor:
        """[num_queries, 1]; 1 for a row that has no logit."""
        return torch.where(self.has_logits, self.exponentials.sum(1, keepdim=True) + self.sink_exponential, 1.0)

    @cached_property
    def weights(self) -> torch.Tensor:
        return self.exponentials / self.denominator

    @cached_property
    def out(self) -> torch.Tensor:
        """[num_queries, value_dim]"""
        return self.weights @ self.values

    @cached_property
    def lse(self) -> torch.Tensor:
        """[num_queries]"""
        return torch.where(self.has_logits, self.peak + self.denominator.log(), -math.inf).squeeze(1)


def attend_dense(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spec: AttentionSpec,
    arithmetic: Arithmetic,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> Attended:
    """Attention of one sequence and its budget, with every option of ``spec``.

    Args:
        query: [num_queries, num_q_heads, head_dim]; row i stands at position context - num_queries + i.
        keys, values: [context, num_kv_heads, head_dim or value_dim], in order of position, as stored.
        key_scales, value_scales: [context, num_kv_heads], where a code has a scale a head or a token.
    """
    keys, values = scaled(keys, key_scales), scaled(values, value_scales)
    heads = []
    for head in range(spec.num_q_heads):
        of = head // spec.group_size
        own = None if value_scales is None else value_scales[:, of].double().cpu()
        heads.append(replace(head_of(query[:, head], keys[:, of], values[:, of], spec, head), value_scales=own))
    parts = [(head.out, head.lse, out_bound(head, arithmetic), lse_bound(head, arithmetic)) for head in heads]
    return Attended(*(torch.stack(part, dim=1) for part in zip(*parts, strict=True)))


def scaled(stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """What codes mean: ``stored`` [context, num_kv_heads, dim] times ``scales`` [context, num_kv_heads]."""
    return stored.double() if scales is None else stored.double() * scales.double()[..., None]


def head_of(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec, head: int) -> Head:
    """Scores of one head: query [num_queries, head_dim], keys and values [context, dim]."""
    q, k = query.double().cpu(), keys.double().cpu()
    scale = spec.scale_value * spec.k_scale
    scores = q @ k.T * scale
    if spec.softcap is not None:
        scores = spec.softcap * (scores / spec.softcap).tanh()
    distance = torch.arange(k.shape[0])[None] - torch.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None]
    bias = 0.0 * distance if spec.alibi_slopes is None else spec.alibi_slopes[head] * distance.double()
    visible = sees(distance, spec)
    return Head(
        scores=torch.where(visible, scores + bias, 0.0),
        magnitudes=torch.where(visible, scores.abs() + bias.abs(), 0.0),
        visible=visible,
        sizes=abs(scale) * (q.square() @ k.square().T).sqrt(),
        values=values.double().cpu() * spec.v_scale,
        head_dim=q.shape[1],
        sink=None if spec.sinks is None else spec.sinks[head],
    )


def sees(distance: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """Where a key at ``distance`` (key position - query position) is visible."""
    visible = distance <= 0 if spec.causal else torch.ones_like(distance, dtype=torch.bool)
    return visible if spec.window is None else visible & (distance > -spec.window)


def out_bound(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """B of ``kvproof_reference.budget``, [num_queries, value_dim]."""
    out, magnitude = head.out, head.values.abs()
    spread = (head.values[None] - out[:, None]).abs()  # [num_queries, context, value_dim]
    mass = head.weights @ magnitude
    bound = output_rounding(out, arithmetic)
    reach = torch.maximum(magnitude[None], spread)
    bound += weight_rounding(head, reach, arithmetic, head.value_scales if arithmetic.weights_take_scale else None)
    bound += torch.einsum("qt,qtd->qd", score_errors(head, arithmetic), spread)
    bound += sink_error(head, arithmetic) * out.abs()
    bound += roundoff(arithmetic) * drift(head, arithmetic) * mass
    bound += underflow(head, arithmetic)
    partials = number_format(arithmetic.partials)
    if partials.unit_roundoff > roundoff(arithmetic):
        bound += partials.unit_roundoff * mass + partials.smallest_subnormal / 2
    return bound + (tf32_values(head) if arithmetic.tf32 else 0.0)


def lse_bound(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """[num_queries]; a row without any logit is exact."""
    lse = torch.where(head.has_logits.squeeze(1), head.lse, 0.0)
    bound = (score_errors(head, arithmetic).sum(1, keepdim=True) + sink_error(head, arithmetic)).squeeze(1)
    bound += roundoff(arithmetic) * (2 * lse.abs() + drift(head, arithmetic).squeeze(1))
    if arithmetic.rounded_sum:
        bound += weight_rounding(head, torch.ones_like(head.scores)[..., None], arithmetic).squeeze(1)
    return torch.where(head.has_logits.squeeze(1), bound, 0.0)


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


def weight_rounding(
    head: Head, reach: torch.Tensor, arithmetic: Arithmetic, taken: torch.Tensor | None = None
) -> torch.Tensor:
    """Of P; ``reach`` [num_queries, context, channels]: what an error of 1 in a weight does, ``taken`` [context]: the
    scales that weights have taken. In proportion to a weight, where ties add up first, and below the normal range."""
    names = [arithmetic.p, *(["tf32"] if arithmetic.tf32 else [])]
    fmt = max((number_format(name) for name in names), key=lambda each: each.unit_roundoff)
    stored = head.exponentials if taken is None else head.exponentials * taken
    small = stored < fmt.smallest_normal
    relative = torch.where(small, 0.0, fmt.unit_roundoff * head.exponentials) / head.denominator
    absolute = torch.where(small, stored.clamp(max=fmt.smallest_subnormal / 2), 0.0) / head.denominator
    codes = reach if taken is None else (head.values / taken[:, None]).nan_to_num(nan=0.0).abs()[None]
    independent = sum_ties(relative[..., None] * reach, head.scores).square().sum(1).sqrt()
    return LAMBDA * independent + (absolute[..., None] * codes).sum(1)


def sum_ties(error: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Sums of ``error`` [num_queries, context, channels] over tokens of one row with equal scores, zeros elsewhere."""
    ordered, order = scores.sort(1)
    starts = torch.ones_like(ordered, dtype=torch.long)
    starts[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).long()
    group = torch.empty_like(order).scatter_(1, order, starts.cumsum(1) - 1)
    return torch.zeros_like(error).scatter_add_(1, group[..., None].expand_as(error), error)


def score_errors(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """[num_queries, context]: p·(u·a + λ/√3·u_q·S)."""
    steps = math.sqrt(head.head_dim) * (head.sizes + head.magnitudes) + 4 * (head.magnitudes + head.peak.abs()) + 2
    operand = number_format("tf32").unit_roundoff if arithmetic.tf32 else 0.0
    operand += number_format(arithmetic.query).unit_roundoff if arithmetic.prescaled_q else 0.0
    return head.weights * (roundoff(arithmetic) * steps + LAMBDA * operand * head.sizes)


def sink_error(head: Head, arithmetic: Arithmetic) -> torch.Tensor:
    """[num_queries, 1]"""
    if head.sink is None:
        return torch.zeros_like(head.peak)
    steps = 4 * (abs(head.sink) + head.peak.abs()) + 2
    return roundoff(arithmetic) * head.sink_exponential / head.denominator * steps


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
