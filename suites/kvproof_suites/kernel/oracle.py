"""Dense attention in float64 and the error budget, vectorised: the torch twin of ``kvproof_reference``.

The standard-library oracle is the truth; this one serves longer contexts, and a law holds the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.formats import FORMATS

LAMBDA = 5 / math.sqrt(3)
"""Five standard deviations of a rounding error that is uniform on ±u (facts in SPEC.md, section error budget)."""
U = 2.0**-24


@dataclass(frozen=True)
class Attended:
    """One sequence: what its query rows must give, and how far a right kernel may be off."""

    out: torch.Tensor
    """[num_queries, num_q_heads, value_dim] float64"""
    lse: torch.Tensor
    """[num_queries, num_q_heads] float64, natural logarithm"""
    out_bound: torch.Tensor
    lse_bound: torch.Tensor


def attend_dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec, rounding: Mapping[str, Any]
) -> Attended:
    """Attention of one sequence and its budget.

    Args:
        query: [num_queries, num_q_heads, head_dim]; row i stands at position context - num_queries + i.
        keys, values: [context, num_kv_heads, head_dim or value_dim], in order of position.
        rounding: the arithmetic that the kernel declares, every default filled in.
    """
    heads = [
        attend_head(
            query[:, head], keys[:, head // spec.group_size], values[:, head // spec.group_size], spec, rounding
        )
        for head in range(spec.num_q_heads)
    ]
    return Attended(*(torch.stack(parts, dim=1) for parts in zip(*heads, strict=True)))


def attend_head(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec, rounding: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, lse, out bound, lse bound) of one head: query [m, head_dim], keys [n, head_dim], values [n, value_dim]."""
    q, k, v = query.double().cpu(), keys.double().cpu(), values.double().cpu()
    num_queries, context_len = q.shape[0], k.shape[0]
    visible = torch.ones(num_queries, context_len, dtype=torch.bool).tril(context_len - num_queries)
    scores = (q @ k.T * spec.scale_value).masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(scores, 1)
    p = torch.where(visible, (scores - lse[:, None]).exp(), 0.0)
    out = p @ v
    magnitudes = spec.scale_value * (q.square() @ k.square().T).sqrt()  # S_t
    finite = scores.masked_fill(~visible, 0.0)
    peak = torch.where(visible.any(1), scores.amax(1, keepdim=False) if context_len else lse, 0.0)
    a = math.sqrt(spec.head_dim) * (magnitudes + finite.abs()) + 4 * (finite.abs() + peak.abs()[:, None]) + 2
    return out, lse, out_bound(p, a, magnitudes, v, out, spec, rounding), lse_bound(p, a, lse, visible, rounding)


def out_bound(
    p: torch.Tensor,
    a: torch.Tensor,
    magnitudes: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    spec: AttentionSpec,
    rounding: Mapping[str, Any],
) -> torch.Tensor:
    """The bound B of SPEC.md, [num_queries, value_dim]; no two scores of a row may be equal (ties are the oracle's)."""
    output, weights = FORMATS[rounding["output"]], FORMATS[rounding["p"]]
    u_output = output.unit_roundoff * (2 if rounding["output_rounding"] == "toward_zero" else 1)
    largest = p.amax(1, keepdim=True) if p.shape[1] else p
    # p̃ = exp(s - m) is what the kernel rounds; p = p̃/l, and the largest p̃ is 1, so that 1/l is the largest p.
    p_error = torch.maximum(weights.unit_roundoff * p, weights.smallest_subnormal / 2 * largest)
    spread = (v[None] - out[:, None]).abs()  # [num_queries, context, value_dim]
    rounded_p = LAMBDA * ((p_error[..., None] * torch.maximum(v.abs()[None], spread)) ** 2).sum(1).sqrt()
    mass = p @ v.abs()
    scores = U * torch.einsum("qt,qtd->qd", p * a, spread)
    accumulated = U * (3 * math.sqrt(p.shape[1] / rounding["tile"] + rounding["tile"]) + 4) * mass
    bound = u_output * out.abs() + output.smallest_subnormal / 2 + rounded_p + scores + accumulated
    if rounding["partials"] != "float32":
        bound = bound + FORMATS[rounding["partials"]].unit_roundoff * mass
    for name, declared in (("tf32", rounding["tf32"]), (spec.dtype, rounding["prescaled_q"])):
        if declared:
            bound = bound + LAMBDA * FORMATS[name].unit_roundoff * torch.einsum("qt,qtd->qd", p * magnitudes, spread)
    return bound


def lse_bound(
    p: torch.Tensor, a: torch.Tensor, lse: torch.Tensor, visible: torch.Tensor, rounding: Mapping[str, Any]
) -> torch.Tensor:
    drift = 3 * math.sqrt(p.shape[1] / rounding["tile"] + rounding["tile"]) + 4
    bound = U * ((p * a).sum(1) + 2 * lse.abs() + drift)
    return torch.where(visible.any(1), bound, 0.0)
