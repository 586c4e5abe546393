"""One output row of attention, in float64, with every quantity on the way: scores, weights, output, LSE.

Dot products are ``math.fsum`` over products, which are exact in double for float16, bfloat16 and float32 inputs: a
score carries the rounding of its scaling and, with them, of soft cap and bias, and nothing that grows with head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Vector = Sequence[float]


@dataclass(frozen=True)
class Row:
    """One query position and one query head, with all that its output is made of.

    Sequences run over the visible keys. ``magnitudes`` are |soft-capped score| + |bias|: what the score was rounded at,
    which exceeds |score| when the two cancel.
    """

    query: Vector
    """[head_dim]"""
    keys: Sequence[Vector]
    """[num_visible, head_dim], a token's own scale applied; ``scale`` holds k_scale."""
    values: Sequence[Vector]
    """[num_visible, value_dim], v_scale applied."""
    value_dim: int
    scale: float
    scores: Sequence[float]
    magnitudes: Sequence[float]
    sink: float | None = None
    value_scales: Sequence[float] | None = None
    """[num_visible]: what of ``values`` is each token's own scale, where they have one."""

    @cached_property
    def peak(self) -> float:
        """m: the largest logit, the sink's included; -inf when there is none."""
        return max(self.scores if self.sink is None else [*self.scores, self.sink], default=-math.inf)

    @cached_property
    def exponentials(self) -> list[float]:
        """p̃: exp(score - m) of each visible key."""
        return [math.exp(score - self.peak) for score in self.scores]

    @cached_property
    def sink_exponential(self) -> float:
        """exp(sink - m); 0 without a sink."""
        return 0.0 if self.sink is None else math.exp(self.sink - self.peak)

    @cached_property
    def denominator(self) -> float:
        """l: the sum of all exponentials, the sink's included; 0 when there is none."""
        return math.fsum([*self.exponentials, self.sink_exponential])

    @cached_property
    def weights(self) -> list[float]:
        """p: softmax, what each visible key's value counts."""
        return [exponential / self.denominator for exponential in self.exponentials]

    @cached_property
    def output(self) -> list[float]:
        """o: [value_dim]; zeros without a visible key."""
        return [
            math.fsum(weight * value[channel] for weight, value in zip(self.weights, self.values, strict=True))
            for channel in range(self.value_dim)
        ]

    @cached_property
    def lse(self) -> float:
        """Natural logarithm of the sum of exp(logit), the sink's included; -inf when there is none."""
        return self.peak + math.log(self.denominator) if self.denominator else -math.inf


def visible_positions(query_position: int, context_len: int, *, causal: bool, window: int | None) -> range:
    """Key positions that the query at ``query_position`` attends to; ``window`` keys at most, its own included."""
    stop = min(query_position + 1, context_len) if causal else context_len
    start = 0 if window is None else max(0, query_position - window + 1)
    return range(min(start, max(stop, 0)), max(stop, 0))


def score_row(
    query: Vector,
    keys: Sequence[Vector],
    values: Sequence[Vector],
    *,
    value_dim: int,
    scale: float,
    softcap: float | None = None,
    biases: Sequence[float] | None = None,
    sink: float | None = None,
    value_scales: Sequence[float] | None = None,
) -> Row:
    """Scores of one query [head_dim] against its visible keys [num_visible, head_dim]: capped, then biased."""
    scores = [scale * math.fsum(q * k for q, k in zip(query, key, strict=True)) for key in keys]
    if softcap is not None:
        scores = [softcap * math.tanh(score / softcap) for score in scores]
    magnitudes = [abs(score) for score in scores]
    if biases is not None:
        magnitudes = [magnitude + abs(bias) for magnitude, bias in zip(magnitudes, biases, strict=True)]
        scores = [score + bias for score, bias in zip(scores, biases, strict=True)]
    return Row(query, keys, values, value_dim, scale, scores, magnitudes, sink, value_scales)
