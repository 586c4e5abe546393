"""The error budget: how far a right kernel may be from float64, element by element, given what it declares.

A kernel that computes what it says it computes stays inside; nothing here is tuned to a kernel. For one query row and
head, n visible keys t = 1..n with scores s_t and values v_t, all from the stored inputs in float64:

    m = max s_t      p̃_t = exp(s_t - m)      l = Σ p̃_t (+ the sink's)      p_t = p̃_t / l      o = Σ p_t v_t
    u_x, η_x      unit roundoff and smallest subnormal of format x: O output, P weights, q query; u: accumulator's
    ν, ν_P        smallest normal number of the accumulator, of P
    D, T          head_dim; tile, the tokens accumulated at a time
    S_t = |scale|·√Σ_d (q_d k_td)²               size of a score's terms; their sum may be far smaller
    r_t = |capped score| + |bias|                what s_t is rounded at; |s_t| without a bias
    a_t = √D·(S_t + r_t) + 4·(r_t + |m|) + 2     error of a score and its exponential, in units of u
    λ = 5         standard deviations of a sum of independent roundings, each at most uniform on ±u: u/√3

The bound of an output element is the sum of

    output        u_O·|o| + η_O/2. One rounding at the end; truncation doubles both.
    weights       λ/√3·√Σ e_t², e_t = u_P·p̃_t/l · max(|v_t|, |v_t - o|), over p̃_t >= ν_P. Rounding P moves Σ P v / l by
                  Σ δ_t p̃_t v_t / l if l sums unrounded weights, by Σ δ_t p̃_t (v_t - o) / l if it sums rounded ones.
                  Different weights round independently; equal scores alike, so their e_t add up before they are
                  squared. (Their absolute values: a tile with another running maximum rounds the same score
                  otherwise, so that opposite values need not cancel.)
    small weights Σ min(p̃_t, η_P/2)/l · max(|v_t|, |v_t - o|), over p̃_t < ν_P. Below the normal range what is lost is
                  absolute, and weights of like size lose it with one sign, to zero for example: nothing averages out.
                  Where a token has a v_scale σ_t of its own, v_t = σ_t c_t, and weights take it before they are
                  rounded, it is w_t = p̃_t σ_t that is rounded, and Σ w_t c_t / l that moves. What is relative stays,
                  since u_P·w_t |c_t| is u_P·p̃_t |v_t|; what is absolute counts the code, Σ min(w_t, η_P/2)·|c_t|/l
                  over w_t < ν_P. l sums weights without scales.
    scores        u·Σ p_t a_t |v_t - o|. Softmax to first order: do = Σ p_t (v_t - o) ds_t, |ds_t| <= u·a_t. The D
                  roundings of a dot product walk at the size of its partial sums, S_t and s_t. A soft cap damps them
                  by a slope of at most 1, under which |x| stays below |capped x|. Cap, bias, conversion to base 2,
                  subtracting m and exp cost 4 of r_t and of m, and 2.
    accumulation  u·(3·√(n/T + T) + 4)·Σ p_t |v_t|. T steps in a tile, n/T from tile to tile, three standard
                  deviations; 4 for rescaling, l and the division.
    underflow     ν·Σ (|v_t| + 1)/l. Exponentials and products below ν may be flushed to zero.
    partials      u_part·Σ p_t |v_t| + η_part/2, if stored in less than the accumulator's format.
    operands      λ/√3·u_q·Σ p_t S_t |v_t - o|. What q and k lose before they are multiplied: tf32, or q pre-scaled.
    tf32 V        λ/√3·2⁻¹¹·√Σ (p_t v_t)². Equal values are rounded alike: their p_t add up first.

and that of the LSE, u·(Σ p_t a_t + 2·|lse| + 3·√(n/T + T) + 4) + λ/√3·u_q·Σ p_t S_t; where l sums rounded weights, it
inherits their roundings: the two terms of weights with 1 for each distance.

A sink is a key with v = 0, S = 0 and no place in P. Rows without any logit are exact.

Terms of second order (u², products of errors) are left out; λ leaves room for them. Source: first-order analysis after
Higham, Accuracy and Stability of Numerical Algorithms (2002), sections 2 and 4; online softmax as in FlashAttention.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from kvproof_reference.arithmetic import Arithmetic
from kvproof_reference.attention_row import Row, Vector
from kvproof_reference.formats import NumberFormat, number_format

LAMBDA = 5.0


def output_bounds(row: Row, arithmetic: Arithmetic) -> list[float]:
    """B of each channel: [value_dim]. A right kernel's output is at most this far from ``row.output``."""
    score_errors = _score_errors(row, arithmetic)
    bounds = []
    for channel, output in enumerate(row.output):
        values = [value[channel] for value in row.values]
        spread = [abs(value - output) for value in values]
        mass = math.fsum(weight * abs(value) for weight, value in zip(row.weights, values, strict=True))
        bounds.append(
            math.fsum(
                [
                    _output_rounding(output, arithmetic),
                    _values_times_weight_rounding(row, values, spread, arithmetic),
                    math.fsum(error * distance for error, distance in zip(score_errors, spread, strict=True)),
                    _sink_error(row, arithmetic) * abs(output),
                    _roundoff(arithmetic) * _accumulation(row, arithmetic) * mass,
                    _underflow(row, values, arithmetic),
                    _partials(mass, arithmetic),
                    _tf32_values(row, values) if arithmetic.tf32 else 0.0,
                ]
            )
        )
    return bounds


def lse_bound(row: Row, arithmetic: Arithmetic) -> float:
    """How far a right kernel's LSE is at most from ``row.lse``; 0 where that is -inf."""
    if row.lse == -math.inf:
        return 0.0
    rounded = _weight_rounding(row, [1.0] * len(row.scores), arithmetic) if arithmetic.rounded_sum else 0.0
    accumulated = _roundoff(arithmetic) * (2 * abs(row.lse) + _accumulation(row, arithmetic))
    return math.fsum([*_score_errors(row, arithmetic), _sink_error(row, arithmetic), accumulated, rounded])


def _roundoff(arithmetic: Arithmetic) -> float:
    return number_format(arithmetic.accumulator).unit_roundoff


def _accumulation(row: Row, arithmetic: Arithmetic) -> float:
    return 3 * math.sqrt(len(row.scores) / arithmetic.tile + arithmetic.tile) + 4


def _output_rounding(output: float, arithmetic: Arithmetic) -> float:
    fmt = number_format(arithmetic.output)
    times = 2 if arithmetic.output_rounding == "toward_zero" else 1
    return times * (fmt.unit_roundoff * abs(output) + fmt.smallest_subnormal / 2)


def _values_times_weight_rounding(row: Row, values: Vector, spread: Vector, arithmetic: Arithmetic) -> float:
    """Of one channel, ``values`` and their distances from the output, [num_visible] each."""
    reach = [max(abs(value), distance) for value, distance in zip(values, spread, strict=True)]
    if not arithmetic.weights_take_scale or row.value_scales is None:
        return _weight_rounding(row, reach, arithmetic)
    codes = [abs(value / own) if own else 0.0 for value, own in zip(values, row.value_scales, strict=True)]
    return _weight_rounding(row, reach, arithmetic, row.value_scales, codes)


def _weight_rounding(
    row: Row, reach: Vector, arithmetic: Arithmetic, taken: Vector | None = None, codes: Vector | None = None
) -> float:
    """What rounding P does to a result, [num_visible] each.

    Args:
        reach: what an error of 1 in a token's weight does.
        taken, codes: the scale that a weight has taken, and what an error of 1 does then; None: 1 and ``reach``.
    """
    fmt = _weight_format(arithmetic)
    ties: defaultdict[float, list[float]] = defaultdict(list)
    small = []
    owns = [1.0] * len(reach) if taken is None else taken
    parts = zip(row.scores, row.exponentials, owns, reach, reach if codes is None else codes, strict=True)
    for score, exponential, own, relative, absolute in parts:
        if exponential * own >= fmt.smallest_normal:
            ties[score].append(fmt.unit_roundoff * exponential / row.denominator * relative)
        else:
            small.append(min(exponential * own, fmt.smallest_subnormal / 2) / row.denominator * absolute)
    return _independent(math.fsum(tied) for tied in ties.values()) + math.fsum(small)


def _weight_format(arithmetic: Arithmetic) -> NumberFormat:
    """Of P as it is multiplied: tf32 products round it once more."""
    formats = [number_format(arithmetic.p), *([number_format("tf32")] if arithmetic.tf32 else [])]
    return max(formats, key=lambda fmt: fmt.unit_roundoff)


def _score_errors(row: Row, arithmetic: Arithmetic) -> list[float]:
    """[num_visible]: how far p_t·s_t may move the rest, p_t·(u·a_t + λ/√3·u_q·S_t)."""
    operand = _operand_roundoff(arithmetic)
    errors = []
    for weight, key, magnitude in zip(row.weights, row.keys, row.magnitudes, strict=True):
        size = abs(row.scale) * math.sqrt(math.fsum((q * k) ** 2 for q, k in zip(row.query, key, strict=True)))
        steps = math.sqrt(len(row.query)) * (size + magnitude) + 4 * (magnitude + abs(row.peak)) + 2
        errors.append(weight * (_roundoff(arithmetic) * steps + LAMBDA / math.sqrt(3) * operand * size))
    return errors


def _operand_roundoff(arithmetic: Arithmetic) -> float:
    """u_q: of every rounding that q and k undergo before they are multiplied."""
    tf32 = number_format("tf32").unit_roundoff if arithmetic.tf32 else 0.0
    return tf32 + (number_format(arithmetic.query).unit_roundoff if arithmetic.prescaled_q else 0.0)


def _sink_error(row: Row, arithmetic: Arithmetic) -> float:
    if row.sink is None:
        return 0.0
    steps = 4 * (abs(row.sink) + abs(row.peak)) + 2
    return _roundoff(arithmetic) * row.sink_exponential / row.denominator * steps


def _underflow(row: Row, values: Vector, arithmetic: Arithmetic) -> float:
    flushed = number_format(arithmetic.accumulator).smallest_normal
    return flushed * math.fsum((abs(value) + 1) / row.denominator for value in values)


def _partials(mass: float, arithmetic: Arithmetic) -> float:
    fmt = number_format(arithmetic.partials)
    return fmt.unit_roundoff * mass + fmt.smallest_subnormal / 2 if fmt.unit_roundoff > _roundoff(arithmetic) else 0.0


def _tf32_values(row: Row, values: Sequence[float]) -> float:
    weight_of: defaultdict[float, float] = defaultdict(float)
    for weight, value in zip(row.weights, values, strict=True):
        weight_of[abs(value)] += weight
    return number_format("tf32").unit_roundoff * _independent(value * weight for value, weight in weight_of.items())


def _independent(errors: Iterable[float]) -> float:
    """λ standard deviations of a sum of independent errors, each uniform up to its size."""
    return LAMBDA / math.sqrt(3) * math.sqrt(math.fsum(error**2 for error in errors))
