"""The error budget term by term: by hand where a row is small enough, by comparison where it is not."""

import math
import random
from dataclasses import replace

import pytest

from kvproof_reference.arithmetic import Arithmetic
from kvproof_reference.attention import attention_rows
from kvproof_reference.attention_row import score_row
from kvproof_reference.budget import lse_bound, output_bounds
from kvproof_reference.formats import FORMATS


def plain(dtype, **declared):
    return Arithmetic.declared(declared, dtype)


def drawn_row(seed, num_tokens=37, head_dim=16, value_dim=4):
    generator = random.Random(seed)

    def vectors(dim, num):
        return [[generator.gauss(0, 1) for _ in range(dim)] for _ in range(num)]

    (query,) = vectors(head_dim, 1)
    return score_row(
        query, vectors(head_dim, num_tokens), vectors(value_dim, num_tokens), value_dim=value_dim, scale=0.4
    )


def single_key(**options):
    """s = 1, v = 3."""
    return score_row([1.0, 0.0], [[2.0, 0.0]], [[3.0]], value_dim=1, scale=0.5, **options)


def test_coarser_declarations_never_narrow_the_budget():
    row = drawn_row(7)
    bounds = lambda **declared: output_bounds(row, plain("float32", **declared))  # noqa: E731
    steps = [
        ({}, {"p": "float16"}),
        ({"p": "float16"}, {"p": "bfloat16"}),
        ({}, {"output": "float16"}),
        ({"output": "bfloat16"}, {"output": "bfloat16", "output_rounding": "toward_zero"}),
        ({"accumulator": "float64"}, {"accumulator": "float32"}),
        ({}, {"accumulator": "float16"}),
        ({}, {"partials": "float16"}),
        ({}, {"tf32": True}),
        ({"tf32": True}, {"tf32": True, "prescaled_q": True}),
    ]
    for finer, coarser in steps:
        assert all(a < b for a, b in zip(bounds(**finer), bounds(**coarser), strict=True)), coarser


def test_a_float64_kernel_has_a_budget_of_its_own_size():
    row = drawn_row(8)
    exact = Arithmetic.declared({"p": "float64", "accumulator": "float64", "output": "float64"}, "float64")
    assert max(output_bounds(row, replace(exact, partials="float64"))) < 1e-12


def test_the_budget_term_by_term_for_a_single_key():
    row, u, fmt = single_key(), 2.0**-24, FORMATS["float16"]
    accumulation = 3 * math.sqrt(1 / 16 + 16) + 4
    expected = [
        fmt.unit_roundoff * 3 + fmt.smallest_subnormal / 2,
        5 / math.sqrt(3) * fmt.unit_roundoff * 3,
        u * accumulation * 3,
    ]
    assert output_bounds(row, plain("float16")) == pytest.approx([math.fsum(expected)], rel=1e-14)
    score_error = math.sqrt(2) * (1 + 1) + 4 * (1 + 1) + 2
    assert lse_bound(row, plain("float16")) == pytest.approx(u * (score_error + 2 + accumulation), rel=1e-14)


def test_a_sink_is_a_key_without_a_value():
    with_sink, without, arithmetic = single_key(sink=1.0), single_key(), plain("float64")
    extra_lse = lse_bound(with_sink, arithmetic) - lse_bound(without, arithmetic)
    u, score_error, sink_error = 2.0**-24, math.sqrt(2) * (1 + 1) + 4 * (1 + 1) + 2, 4 * (1 + 1) + 2
    grown_lse = 2 * (with_sink.lse - without.lse)
    assert extra_lse == pytest.approx(u * ((sink_error - score_error) / 2 + grown_lse), rel=1e-6)
    # o = 1.5 and |v - o| = 1.5: key and sink move the output by the same distance.
    moved = u * 1.5 * (score_error + sink_error) / 2 + u * (3 * math.sqrt(1 / 16 + 16) + 4) * 1.5
    assert output_bounds(with_sink, arithmetic) == pytest.approx([moved], rel=1e-6)


def test_an_exponential_that_is_flushed_to_zero_is_allowed_for():
    tiny = score_row([1.0], [[0.0], [-88.0]], [[0.0], [1.0]], value_dim=1, scale=1.0)
    assert 0 < tiny.output[0] < FORMATS["float32"].smallest_normal
    assert output_bounds(tiny, plain("float32"))[0] > tiny.output[0]


HALF = FORMATS["float16"]
LOUD = 5 / math.sqrt(3) * HALF.unit_roundoff
"""What the weight of the loudest key may lose, times its value's distance from the output."""


def one_loud(scores, value=1.0, **options):
    """A key with the value 0, and others that score less and have the value ``value``."""
    keys = [[0.0], *([score] for score in scores)]
    return score_row([1.0], keys, [[0.0], *[[value]] * len(scores)], value_dim=1, scale=1.0, **options)


def lost_with_the_weights(row, **declared):
    """The part of the bound that float16 weights add, of the numerator of the output."""
    bounds = (
        output_bounds(row, plain("float16", p=p, output="float64", **declared))[0] for p in ("float16", "float64")
    )
    return (next(bounds) - next(bounds)) * row.denominator


def test_weights_that_all_round_to_zero_add_up():
    """As much as they weigh is lost, however many they are: nothing averages out."""
    row = one_loud([-18 - t / 1000 for t in range(400)])
    assert max(row.exponentials[1:]) < HALF.smallest_subnormal / 2
    lost = math.fsum(row.exponentials[1:]) + LOUD * row.output[0]
    assert lost_with_the_weights(row) == pytest.approx(lost, rel=1e-6)


def test_below_the_normal_range_a_weight_loses_half_of_the_smallest_number_at_most():
    row = one_loud([-12.0])
    lost = HALF.smallest_subnormal / 2 + LOUD * row.output[0]
    assert lost_with_the_weights(row) == pytest.approx(lost, rel=1e-6)


@pytest.mark.parametrize("scale", [2.0**-10, 1.0, 2.0**6])
def test_a_weight_that_takes_its_tokens_scale_loses_in_proportion_or_below_the_range_as_much_as_a_code(scale):
    code, taken = 8.0, {"weights_take_scale": True}
    normal = one_loud([-1.0], value=code * scale, value_scales=[1.0, scale])
    lost = LOUD * math.hypot(math.exp(-1.0) * code * scale, normal.output[0])
    assert lost_with_the_weights(normal, **taken) == pytest.approx(lost, rel=1e-6)
    tiny = one_loud([-math.log(2.0**18 * scale)], value=code * scale, value_scales=[1.0, scale])
    lost = HALF.smallest_subnormal / 2 * code + LOUD * tiny.output[0]
    assert lost_with_the_weights(tiny, **taken) == pytest.approx(lost, rel=1e-6)


def test_a_row_that_sees_nothing_is_exact():
    ((_, _, row),) = attention_rows([[[1.0]]], [], [], scale=1.0)
    assert output_bounds(row, plain("float16")) == [FORMATS["float16"].smallest_subnormal / 2]
    assert lse_bound(row, plain("float16")) == 0.0


def test_what_is_absent_or_none_in_a_declaration_is_the_type_of_the_query():
    assert plain("bfloat16", p=None, tile=64) == Arithmetic("bfloat16", "bfloat16", output="bfloat16", tile=64)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"acc": "float32"}, "arithmetic declares acc; known: accumulator, "),
        ({"p": "half"}, "unknown number format 'half'"),
        ({"output_rounding": "up"}, "output_rounding 'up' is none of nearest, toward_zero"),
        ({"tile": 0}, "tile must be at least 1, got 0"),
        ({"weights_take_scale": True, "rounded_sum": True}, "weights times scales sum to no denominator"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(declared, message):
    with pytest.raises(ValueError, match=message):
        plain("float16", **declared)
