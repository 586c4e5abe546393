"""Dense attention: each option checked against numbers that follow from its definition, not from another kernel."""

import math
import random

import pytest

from kvproof_reference.attention import attend, attention_rows

LN2 = math.log(2)


def drawn(shape, seed=0):
    """Nested lists of standard normal numbers."""
    generator = random.Random(seed)

    def nested(dims):
        return [nested(dims[1:]) for _ in range(dims[0])] if dims else generator.gauss(0, 1)

    return nested(shape)


def one_hot_positions(context_len):
    """Values [context_len, 1, context_len]: the output then is the row of softmax weights."""
    return [[[float(t == channel) for channel in range(context_len)]] for t in range(context_len)]


def weights_of(query, keys, **options):
    """[num_query, context_len] of one head."""
    out, _ = attend(query, keys, one_hot_positions(len(keys)), **options)
    return [heads[0] for heads in out]


def zeros(num_positions, num_heads, head_dim):
    return [[[0.0] * head_dim for _ in range(num_heads)] for _ in range(num_positions)]


def test_two_keys_by_hand():
    out, lse = attend([[[1.0]]], [[[0.0]], [[LN2]]], [[[10.0]], [[40.0]]], scale=1.0)
    assert out[0][0][0] == pytest.approx((1 * 10 + 2 * 40) / 3, rel=1e-15)
    assert lse[0][0] == pytest.approx(math.log(3), rel=1e-15)


def test_scale_multiplies_the_score():
    (weights,) = weights_of([[[1.0]]], [[[0.0]], [[1.0]]], scale=LN2)
    assert weights == pytest.approx([1 / 3, 2 / 3], rel=1e-15)


def test_a_zero_query_averages_the_values():
    values = drawn((7, 1, 3))
    out, lse = attend(zeros(1, 1, 4), drawn((7, 1, 4)), values, scale=0.5)
    assert out[0][0] == pytest.approx([math.fsum(v[0][c] for v in values) / 7 for c in range(3)], rel=1e-14)
    assert lse[0][0] == pytest.approx(math.log(7), rel=1e-15)


@pytest.mark.parametrize("num_query", [1, 3, 5])
def test_the_causal_mask_is_aligned_to_the_bottom_right(num_query):
    rows = weights_of(zeros(num_query, 1, 2), drawn((5, 1, 2)), scale=1.0)
    for row, weights in enumerate(rows):
        num_visible = 5 - num_query + row + 1
        assert weights == pytest.approx([1 / num_visible] * num_visible + [0.0] * (5 - num_visible), rel=1e-15)


def test_without_the_causal_mask_every_key_is_visible():
    for weights in weights_of(zeros(3, 1, 2), drawn((5, 1, 2)), scale=1.0, causal=False):
        assert weights == pytest.approx([0.2] * 5, rel=1e-15)


@pytest.mark.parametrize("window", [1, 2, 4, 5, 9])
def test_a_window_counts_visible_keys_the_own_one_included(window):
    for row, weights in enumerate(weights_of(zeros(5, 1, 2), drawn((5, 1, 2)), scale=1.0, window=window)):
        visible = [t for t, weight in enumerate(weights) if weight]
        assert visible == list(range(max(0, row - window + 1), row + 1))


@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(4, 4), (4, 2), (6, 2), (3, 1)])
def test_query_heads_of_a_group_share_a_key_head(num_q_heads, num_kv_heads):
    values = [[[float(head)] for head in range(num_kv_heads)]] * 3
    out, _ = attend(drawn((1, num_q_heads, 2)), drawn((3, num_kv_heads, 2)), values, scale=1.0)
    group_size = num_q_heads // num_kv_heads
    assert [round(head[0], 12) for head in out[0]] == [head // group_size for head in range(num_q_heads)]


def test_the_soft_cap_bends_the_scaled_score():
    (weights,) = weights_of([[[1.0]]], [[[0.0]], [[8.0]]], scale=0.5, softcap=2.0)
    assert weights[1] / weights[0] == pytest.approx(math.exp(2 * math.tanh(2)), rel=1e-14)


def test_alibi_adds_the_slope_times_the_distance_after_the_soft_cap():
    query = zeros(2, 2, 1)
    for row, head, piece in attention_rows(
        query, drawn((4, 1, 1)), drawn((4, 1, 1)), scale=1.0, softcap=0.1, alibi_slopes=[0.5, 2.0]
    ):
        slope, position = [0.5, 2.0][head], 2 + row
        assert piece.scores == [slope * (t - position) for t in range(position + 1)]


def test_a_sink_takes_weight_and_counts_in_the_lse():
    values = [[[3.0]], [[5.0]]]
    out, lse = attend(zeros(1, 2, 1), drawn((2, 1, 1)), values, scale=1.0, sinks=[0.0, LN2])
    assert out[0] == [[pytest.approx(8 / 3, rel=1e-15)], [pytest.approx(8 / 4, rel=1e-15)]]
    assert lse[0] == pytest.approx([math.log(3), math.log(4)], rel=1e-15)


def test_key_and_value_scales_stand_for_scaled_keys_and_values():
    query, keys, values = drawn((2, 2, 4), 1), drawn((6, 1, 4), 2), drawn((6, 1, 3), 3)
    scaled = attend(query, keys, values, scale=0.7, k_scale=0.25, v_scale=0.5)
    explicit = attend(
        query,
        [[[0.25 * x for x in keys[t][0]]] for t in range(6)],
        [[[0.5 * x for x in v[0]]] for v in values],
        scale=0.7,
    )
    for got, want in zip(scaled[0], explicit[0], strict=True):
        assert got == [pytest.approx(head, rel=1e-14) for head in want]
    assert scaled[1] == [pytest.approx(row, rel=1e-14) for row in explicit[1]]


def test_values_may_have_a_dimension_of_their_own():
    out, _ = attend(drawn((1, 1, 6)), drawn((3, 1, 6)), drawn((3, 1, 2)), scale=1.0)
    assert len(out[0][0]) == 2


@pytest.mark.parametrize("shift", [-6e4, -1e3, 1e3, 2e4])
def test_adding_a_constant_to_all_scores_changes_nothing(shift):
    keys, values = drawn((5, 1, 2), 4), drawn((5, 1, 3), 5)
    shifted = [[[*key[0], 1.0]] for key in keys]
    plain, lse = attend([[[1.0, 0.5, 0.0]]], shifted, values, scale=1.0)
    moved, moved_lse = attend([[[1.0, 0.5, shift]]], shifted, values, scale=1.0)
    assert moved[0][0] == pytest.approx(plain[0][0], rel=1e-10)
    assert moved_lse[0][0] - shift == pytest.approx(lse[0][0], rel=1e-10)


def test_a_row_before_the_first_key_sees_nothing():
    out, lse = attend(drawn((4, 1, 2)), drawn((2, 1, 2)), drawn((2, 1, 3)), scale=1.0)
    assert out[:2] == [[[0.0] * 3]] * 2
    assert lse[:2] == [[-math.inf]] * 2
    assert all(math.isfinite(row[0]) for row in lse[2:])


def test_an_empty_context_gives_zeros_and_the_sink_if_there_is_one():
    assert attend(drawn((1, 1, 2)), [], [], scale=1.0, value_dim=3) == ([[[0.0] * 3]], [[-math.inf]])
    assert attend(drawn((1, 1, 2)), [], [], scale=1.0, sinks=[1.5]) == ([[[0.0] * 2]], [[1.5]])


def test_no_query_gives_no_rows():
    assert attend([], drawn((2, 1, 2)), drawn((2, 1, 2)), scale=1.0) == ([], [])


def test_products_of_narrow_formats_are_summed_exactly():
    query, keys = [[[2.0**12, 1.0, -(2.0**12)]]], [[[2.0**12, 2.0**-24, 2.0**12]]]
    ((_, _, row),) = attention_rows(query, keys, [[[1.0]]], scale=1.0)
    assert row.scores == [2.0**-24]


def test_parts_of_a_row_fit_together():
    query, keys, values = drawn((1, 1, 4), 6), drawn((9, 1, 4), 7), drawn((9, 1, 2), 8)
    ((_, _, row),) = attention_rows(query, keys, values, scale=0.5, sinks=[0.3])
    assert math.fsum(row.weights) + row.sink_exponential / row.denominator == pytest.approx(1, rel=1e-15)
    assert row.lse == pytest.approx(math.log(math.fsum(map(math.exp, [*row.scores, 0.3]))), rel=1e-14)
    assert row.peak == max([*row.scores, 0.3])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"keys": drawn((3, 1, 5))}, "keys have head_dim 5, the query has 4"),
        ({"keys": drawn((2, 1, 4))}, r"keys are \[2, 1, 4\], values \[3, 1, 4\]"),
        ({"keys": drawn((3, 3, 4)), "values": drawn((3, 3, 4))}, r"num_q_heads \(2\) must be a multiple of .*\(3\)"),
        ({"query": [[[1.0] * 4, [1.0] * 3]]}, "query must be"),
        ({"keys": [[]] * 3}, "keys must be"),
        ({"window": 0}, "window must be positive, got 0"),
        ({"window": 2, "causal": False}, "a window needs causal"),
        ({"softcap": -1.0}, "softcap must be positive"),
        ({"alibi_slopes": [1.0]}, "alibi_slopes has 1 entries, the query has 2 heads"),
        ({"sinks": [1.0] * 3}, "sinks has 3 entries, the query has 2 heads"),
        ({"value_dim": 7}, "values have 4 channels, value_dim is 7"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(overrides, message):
    arguments = {
        "query": drawn((1, 2, 4)),
        "keys": drawn((3, 1, 4)),
        "values": drawn((3, 1, 4)),
        "scale": 1.0,
    } | overrides
    with pytest.raises(ValueError, match=message):
        attend(**arguments)
