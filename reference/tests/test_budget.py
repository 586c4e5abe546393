"""The error budget, tried on a simulated kernel: what is right stays inside, what is wrong by one token does not."""

import math
import random
import struct
from dataclasses import dataclass, replace

import pytest

from kvproof_reference.arithmetic import Arithmetic
from kvproof_reference.attention import attention_rows
from kvproof_reference.budget import lse_bound, output_bounds
from kvproof_reference.formats import FORMATS

HEAD_DIM, VALUE_DIM = 16, 4


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def float16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def bfloat16(x, half=0x7FFF):
    """Nearest, ties to even, by way of float32; ``half`` 0 truncates."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits += (half + (bits >> 16 & 1)) if half else 0
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def tf32(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", bits + 0xFFF + (bits >> 13 & 1) & 0xFFFFE000))[0]


ROUND = {"float16": float16, "bfloat16": bfloat16, "float32": float32, "tf32": tf32}


@dataclass(frozen=True)
class Case:
    """One query row and head, in ``dtype``."""

    dtype: str
    query: list
    keys: list
    values: list
    options: dict

    @property
    def row(self):
        ((_, _, row),) = attention_rows(
            [[self.query]], [[key] for key in self.keys], [[value] for value in self.values], **self.options
        )
        return row


def drawn(dtype, num_tokens, seed, spread=1.0, one_hot=False, **options):
    generator = random.Random(seed)

    def vector(dim, size=1.0):
        return [ROUND[dtype](size * generator.gauss(0, 1)) for _ in range(dim)]

    def value(t):
        return [float(t % VALUE_DIM == channel) for channel in range(VALUE_DIM)] if one_hot else vector(VALUE_DIM)

    keys = [vector(HEAD_DIM) for _ in range(num_tokens)]
    options = {"scale": 1 / math.sqrt(HEAD_DIM), **options}
    return Case(dtype, vector(HEAD_DIM, spread), keys, [value(t) for t in range(num_tokens)], options)


def score_of(case, arithmetic, t):
    """Score in float32, every operation rounded."""
    scale = float32(case.options["scale"])
    operand = tf32 if arithmetic.tf32 else float32
    query = [ROUND[case.dtype](q * scale) for q in case.query] if arithmetic.prescaled_q else case.query
    score = 0.0
    for q, k in zip(query, case.keys[t], strict=True):
        score = float32(score + float32(operand(q) * operand(k)))
    score = score if arithmetic.prescaled_q else float32(score * scale)
    if cap := case.options.get("softcap"):
        score = float32(cap * float32(math.tanh(float32(score / cap))))
    if slopes := case.options.get("alibi_slopes"):
        score = float32(score + float32(slopes[0] * (t - len(case.keys) + 1)))
    return score


def summed(terms):
    """In float32, one after the other."""
    total = 0.0
    for term in terms:
        total = float32(total + float32(term))
    return total


def partial_result(case, arithmetic, tokens, start_at):
    """Online softmax over ``tokens``, tile by tile, from (running maximum, sum): both, and the unnormalised output."""
    round_p, operand = ROUND[arithmetic.p], tf32 if arithmetic.tf32 else float32
    (peak, total), acc = start_at, [0.0] * VALUE_DIM
    for start in range(0, len(tokens), arithmetic.tile):
        tile = tokens[start : start + arithmetic.tile]
        scores = [score_of(case, arithmetic, t) for t in tile]
        new_peak = max(peak, *scores)
        alpha = float32(math.exp(float32(peak - new_peak)))
        exact = [float32(math.exp(float32(score - new_peak))) for score in scores]
        weights = [operand(round_p(p)) for p in exact]
        peak = new_peak
        total = float32(total * alpha + summed(weights if arithmetic.rounded_sum else exact))
        for channel in range(VALUE_DIM):
            products = [p * operand(case.values[t][channel]) for t, p in zip(tile, weights, strict=True)]
            acc[channel] = float32(float32(acc[channel] * alpha) + summed(products))
    return peak, total, acc


def simulated(case, arithmetic, tokens=None, num_splits=1, sink_first=False):
    """(output, lse) of a flash-style kernel that reads ``tokens`` and rounds as ``arithmetic`` says. The sink is the
    running maximum to begin with, or joins at the end."""
    tokens = list(range(len(case.keys))) if tokens is None else tokens
    size = -(-len(tokens) // num_splits)
    sink = case.options.get("sinks", [-math.inf])[0]
    start_at = (sink, 1.0) if sink_first else (-math.inf, 0.0)
    splits = [partial_result(case, arithmetic, tokens[i : i + size], start_at) for i in range(0, len(tokens), size)]
    peak = max(sink, *(peak for peak, _, _ in splits))
    total, out = 0.0 if sink_first else float32(math.exp(sink - peak)), [0.0] * VALUE_DIM
    for split_peak, split_total, acc in splits:
        weight = float32(float32(math.exp(float32(split_peak - peak))) * split_total)
        total = float32(total + weight)
        for channel in range(VALUE_DIM):
            part = float32(acc[channel] / split_total)
            part = ROUND[arithmetic.partials](part) if num_splits > 1 else part
            out[channel] = float32(out[channel] + float32(part * weight))
    store = ROUND[arithmetic.output] if arithmetic.output_rounding == "nearest" else lambda x: bfloat16(x, half=0)
    return [store(float32(x / total)) for x in out], float32(peak + float32(math.log(total)))


def worst_ratio(case, declared, actual=None, **how):
    """Largest error ÷ bound over the channels and the LSE."""
    out, lse = simulated(case, actual or declared, **how)
    row = case.row
    errors = [abs(got - want) for got, want in zip(out, row.output, strict=True)]
    ratios = [error / bound for error, bound in zip(errors, output_bounds(row, declared), strict=True)]
    return max(ratios), abs(lse - row.lse) / lse_bound(row, declared)


def plain(dtype, **declared):
    return Arithmetic.declared(declared, dtype)


RIGHT = {
    "plain": ({}, {}, {}),
    "sum of rounded weights": ({}, {"rounded_sum": True}, {}),
    "peaked": ({"spread": 4.0}, {}, {}),
    "peaked one-hot values": ({"spread": 8.0, "one_hot": True}, {}, {}),
    "four splits": ({}, {}, {"num_splits": 4}),
    "float32 output": ({"spread": 4.0, "one_hot": True}, {"output": "float32"}, {}),
    "soft cap": ({"spread": 8.0, "softcap": 5.0}, {}, {}),
    "alibi": ({"alibi_slopes": [0.25]}, {}, {}),
    "scores that alibi cancels": ({"spread": 20.0, "alibi_slopes": [3.0]}, {}, {}),
    "sink": ({"sinks": [1.0]}, {}, {}),
    "sink first": ({"sinks": [2.0]}, {}, {"sink_first": True}),
    "pre-scaled query": ({"spread": 4.0, "scale": 0.3}, {"prescaled_q": True}, {}),
    "wide tile": ({}, {"tile": 64}, {}),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_kernel_stays_inside_the_budget(kind, dtype):
    data, declared, how = RIGHT[kind]
    arithmetic = plain(dtype, **declared)
    lengths = [1, 2, 15, 16, 17, 37, 130]
    ratios = [worst_ratio(drawn(dtype, n, seed, **data), arithmetic, **how) for seed in (1, 2) for n in lengths]
    assert max(max(pair) for pair in ratios) < 1
    assert max(output for output, _ in ratios) > 0.05, "a bound twenty times too wide would show nothing"


@pytest.mark.parametrize("sink_first", [False, True])
@pytest.mark.parametrize("sink", [8.0, 25.0])
def test_weights_that_a_sink_drives_below_the_normal_range_are_allowed_for(sink, sink_first):
    for n in (1, 17, 37):
        assert max(worst_ratio(drawn("float16", n, 1, sinks=[sink]), plain("float16"), sink_first=sink_first)) < 1


@pytest.mark.parametrize(
    ("dtype", "spread", "known", "extra", "num_splits"),
    [
        ("bfloat16", 1, {"p": "float32"}, {"output_rounding": "toward_zero"}, 1),
        ("bfloat16", 1, {"p": "float32", "output": "float32"}, {"partials": "bfloat16"}, 8),
        ("float32", 1, {}, {"tf32": True}, 1),
        ("float16", 8, {"output": "float32"}, {"prescaled_q": True}, 1),
        ("float16", 2, {"output": "float32"}, {"p": "bfloat16"}, 1),
        ("float16", 1, {}, {"rounded_sum": True}, 1),
    ],
)
def test_declared_roundings_are_allowed_and_undeclared_ones_are_seen(dtype, spread, known, extra, num_splits):
    cases = [drawn(dtype, n, seed, spread=spread, scale=0.3) for seed in range(4) for n in (17, 37)]
    actual, silent = plain(dtype, **known, **extra), plain(dtype, **known)
    honest = [max(worst_ratio(case, actual, num_splits=num_splits)) for case in cases]
    hidden = [max(worst_ratio(case, silent, actual, num_splits=num_splits)) for case in cases]
    assert max(honest) < 1 < max(hidden)


WRONG = {
    "dropped": lambda t, n: [*range(t), *range(t + 1, n)],
    "read twice": lambda t, n: [*range(n), t],
    "replaced by its neighbour": lambda t, n: [*range(t), (t + 1) % n, *range(t + 1, n)],
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mistake", WRONG)
def test_one_wrong_token_of_37_breaks_the_budget(mistake, dtype):
    for seed in range(5):
        case = drawn(dtype, 37, seed)
        median = sorted(range(37), key=case.row.weights.__getitem__)[18]
        ratio, _ = worst_ratio(case, plain(dtype), tokens=WRONG[mistake](median, 37))
        assert ratio > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_zeros_and_the_mean_of_the_values_break_the_budget(dtype):
    row = drawn(dtype, 37, 3, spread=2.0).row
    mean = [math.fsum(column) / 37 for column in zip(*row.values, strict=True)]
    for wrong in ([0.0] * VALUE_DIM, mean):
        errors = [abs(got - want) for got, want in zip(wrong, row.output, strict=True)]
        assert any(error > bound for error, bound in zip(errors, output_bounds(row, plain(dtype)), strict=True))


def tied(p, value_at):
    """300 keys, all equal but one in the middle, which weighs twice as much: P of the others is 0.95 half steps off."""
    exponential = 0.5 + 0.95 * FORMATS[p].unit_roundoff / 2
    keys = [[0.0 if t != 150 else float32(-math.log(exponential)), 0.0] for t in range(300)]
    return Case("float32", [1.0, 0.0], keys, [[value_at(t)] * VALUE_DIM for t in range(300)], {"scale": 1.0})


@pytest.mark.parametrize("p", ["float16", "bfloat16"])
@pytest.mark.parametrize("rounded_sum", [False, True])
@pytest.mark.parametrize("value_at", [lambda t: 1.0, lambda t: 1.0 if t < 150 else -1.0], ids=["equal", "opposite"])
def test_equal_scores_round_alike_and_the_budget_knows(p, rounded_sum, value_at):
    """Opposite values: before the heavy key the others are the maximum and P is 1, exact; after it they are rounded."""
    assert max(worst_ratio(tied(p, value_at), plain("float32", p=p, rounded_sum=rounded_sum))) < 1


@pytest.mark.parametrize("p", ["float16", "bfloat16"])
def test_ties_counted_as_independent_would_cry_wolf(p):
    case, arithmetic = tied(p, lambda t: 1.0 if t < 150 else -1.0), plain("float32", p=p)
    out, _ = simulated(case, arithmetic)
    row = case.row
    untied = replace(row, scores=[score + 1e-12 * t for t, score in enumerate(row.scores)])
    assert abs(out[0] - row.output[0]) > output_bounds(untied, arithmetic)[0]


def test_tf32_rounds_equal_values_alike():
    case = drawn("float32", 130, 4)
    case = replace(case, values=[[float32(1 + 0.95 * 2.0**-11)] * VALUE_DIM] * 130)
    assert worst_ratio(case, plain("float32", tf32=True))[0] * 5 / math.sqrt(3) > 0.5
    assert max(worst_ratio(case, plain("float32", tf32=True))) < 1


def test_scores_that_their_bias_cancels_are_rounded_at_the_size_they_had():
    def cancelled(seed):
        generator = random.Random(seed)
        keys = [[float32(generator.uniform(900, 1000))], [0.0]]
        slope = float32(0.3 * keys[0][0])
        options = {"scale": 0.3, "alibi_slopes": [slope]}
        return Case("float32", [1.0], keys, [[1.0] * VALUE_DIM, [-1.0] * VALUE_DIM], options)

    assert max(max(worst_ratio(cancelled(seed), plain("float32"))) for seed in range(300)) < 1


def test_tf32_rounds_the_weights_too():
    # Values exact in tf32 and all different: their own allowance is too small to hide what the weights lose.
    case = tied("float16", lambda t: (1 if t < 150 else -1) * (1 + t / 1024))
    for step in range(20):
        heavy = [tf32(0.69 + step * 2.0**-11), 0.0]  # exact as an operand, so that only its weight is rounded
        keys = [heavy if t == 150 else key for t, key in enumerate(case.keys)]
        assert max(worst_ratio(replace(case, keys=keys), plain("float32", tf32=True))) < 1
