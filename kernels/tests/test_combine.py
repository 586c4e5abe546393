"""Merging partial results is a monoid, and what a kernel leaves in parts is what it gives in one."""

from __future__ import annotations

import math

import pytest
import torch

from kvproof_kernels.combine import combine, merge

U = 2.0**-24


def parts(num_parts, num_tokens=5, num_q_heads=3, value_dim=80, seed=0):
    random = torch.Generator().manual_seed(seed)
    outs = torch.randn(num_parts, num_tokens, num_q_heads, value_dim, generator=random)
    return outs, 5 * torch.randn(num_parts, num_tokens, num_q_heads, generator=random)


def merged(outs, lses):
    """In float64."""
    lse = lses.double().logsumexp(0)
    weights = torch.where(lses == -math.inf, 0.0, (lses.double() - lse).exp())
    return (weights[..., None] * outs.double()).sum(0), lse


def bounds(outs, lses):
    """Of rounding: each weight's exponent is off by 4 u (|lse_i| + |lse|), each of n terms of a sum by u more."""
    _, lse = merged(outs, lses)
    size = lses.abs().nan_to_num(posinf=0).amax(0) + lse.abs().nan_to_num(posinf=0)
    steps = 4 * size + len(outs) + 8
    return 2 * U * steps[..., None] * outs.abs().amax(0), U * steps


@pytest.mark.parametrize("num_parts", [1, 2, 31, 32, 33, 100])
@pytest.mark.parametrize("value_dim", [16, 64, 80, 512])
def test_parts_merge_by_their_log_sum_exp(num_parts, value_dim):
    outs, lses = parts(num_parts, value_dim=value_dim)
    out, lse = merge(outs, lses)
    want, want_lse = merged(outs, lses)
    out_bound, lse_bound = bounds(outs, lses)
    assert torch.all((out - want).abs() <= out_bound)
    assert torch.all((lse - want_lse).abs() <= lse_bound)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_empty_result_is_the_identity(place):
    outs, lses = parts(3)
    outs[place], lses[place] = 0.0, -math.inf
    others = [part for part in range(3) if part != place]
    with_identity, without = merge(outs, lses), merge(outs[others], lses[others])
    assert torch.equal(with_identity[0], without[0])
    assert torch.equal(with_identity[1], without[1])


def test_nothing_but_empty_results_is_empty():
    outs, lses = torch.zeros(4, 2, 3, 64), torch.full((4, 2, 3), -math.inf)
    out, lse = merge(outs, lses)
    assert torch.all(out == 0)
    assert torch.all(lse == -math.inf)


def test_merging_is_associative_up_to_rounding():
    outs, lses = parts(3)
    first, first_lse = merge(outs[:2], lses[:2])
    left, left_lse = merge(torch.stack([first, outs[2]]), torch.stack([first_lse, lses[2]]))
    out_bound, lse_bound = bounds(outs, lses)
    out, lse = merge(outs, lses)
    assert torch.all((left - out).abs() <= 3 * out_bound)
    assert torch.all((left_lse - lse).abs() <= 3 * lse_bound)


def test_of_no_parts_the_merged_result_is_the_identity():
    out, lse = merge(*parts(0, value_dim=64))
    assert torch.all(out == 0)
    assert torch.all(lse == -math.inf)


def test_parts_may_be_stored_in_any_order():
    outs, lses = parts(3, value_dim=64)
    head_first = outs.transpose(1, 2).contiguous().transpose(1, 2), lses.mT.contiguous().mT
    for got, want in zip(merge(*head_first), merge(outs, lses), strict=True):
        assert torch.equal(got, want)
        assert got.is_contiguous()


@pytest.mark.parametrize(
    ("outs", "lses", "message"),
    [
        (torch.zeros(2, 3, 64), torch.zeros(2, 3), r"outs \[2, 3, 64\] must have 4 dims"),
        (torch.zeros(2, 5, 3, 64), torch.zeros(5, 2, 3), r"lses \[5, 2, 3\] must be \[2, 5, 3\]"),
        (torch.zeros(2, 5, 3, 528), torch.zeros(2, 5, 3), r"out \[5, 3, 528\] has value_dim 528; .* at most 512"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(outs, lses, message):
    with pytest.raises(ValueError, match=message):
        merge(outs, lses)


def test_two_parts_may_be_swapped():
    outs, lses = parts(2)
    assert torch.equal(merge(outs, lses)[0], merge(outs.flip(0), lses.flip(0))[0])


def test_lses_far_from_zero_do_not_overflow():
    outs, lses = parts(3)
    out, lse = merge(outs, lses + 1e4)
    assert out.isfinite().all()
    assert torch.all((lse - 1e4 - merged(outs, lses)[1]).abs() < 1e4 * 8 * U)


@pytest.mark.parametrize("context_lens", [[300, 700, 5000], [257, 0, 512], [4097]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_split_contexts_give_what_dense_attention_gives(paged, context_lens, dtype):
    case = paged.draw(context_lens, num_kv_heads=1, dtype=dtype, block_size=48)
    assert case.plan().work.num_partials > 0
    paged.assert_attends(case, *case.run())


def test_rows_without_parts_are_left_alone():
    outs, lses = torch.ones(3, 2, 16), torch.zeros(3, 2)
    starts, no_sinks = torch.tensor([0, 0, 3], dtype=torch.int32), torch.full((2,), -math.inf)
    out, lse = torch.full((2, 2, 16), 7.0), torch.full((2, 2), 7.0)
    combine(outs, lses, starts, no_sinks, out, lse)
    assert torch.all(out[0] == 7.0)
    assert torch.all(out[1] == 1.0)
    assert lse[0].tolist() == [7.0, 7.0]


def test_a_sink_counts_once():
    outs, lses = torch.ones(2, 1, 16), torch.zeros(2, 1)
    out, lse = torch.empty(1, 1, 16), torch.empty(1, 1)
    combine(outs, lses, torch.tensor([0, 2], dtype=torch.int32), torch.zeros(1), out, lse)
    assert torch.allclose(out, torch.full_like(out, 2 / 3))
    assert float(lse) == pytest.approx(math.log(3))


@pytest.mark.parametrize(
    ("name", "tensor", "error", "message"),
    [
        ("partial_out", torch.ones(3, 2, 16).half(), TypeError, r"partial_out \[3, 2, 16\] is torch.float16"),
        ("partial_out", torch.ones(3, 2, 32), ValueError, r"partial_out \[3, 2, 32\] must be \[3, 2, 16\]"),
        ("partial_lse", torch.zeros(2, 3).T, ValueError, r"partial_lse \[3, 2\] has strides .*; it must be packed"),
        ("partial_start", torch.tensor([0, 1, 3]), TypeError, r"partial_start \[3\] is torch.int64"),
        ("sinks", torch.zeros(3), ValueError, r"sinks \[3\] must be \[2\]"),
        ("out", torch.empty(2, 2, 16, dtype=torch.int32), TypeError, "out is torch.int32; the kernels take"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name, tensor, error, message):
    given = {"partial_out": torch.ones(3, 2, 16), "partial_lse": torch.zeros(3, 2), "sinks": torch.zeros(2)}
    given |= {"partial_start": torch.tensor([0, 1, 3], dtype=torch.int32)}
    given |= {"out": torch.empty(2, 2, 16), "lse": torch.empty(2, 2)}
    with pytest.raises(error, match=message):
        combine(**{**given, name: tensor})
