"""A plain function becomes a kernel: every launch calls it with the pools and the step tensors."""

from dataclasses import replace

import pytest
import torch

from kvproof_impls import AttentionSpec, from_function

SPEC = AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8, block_size=4, dtype="float32")


def attend_first_token(query, key_pool, value_pool, block_tables, context_lens, query_start, *, scale):
    """One key a sequence: softmax gives it weight 1."""
    rows = torch.repeat_interleave(block_tables[:, 0].long(), query_start.diff())
    return value_pool[rows, 0].expand_as(query)


def test_a_launch_hands_over_query_pools_tables_and_lengths(paged):
    case = paged.case(SPEC, [1, 1, 1], [1, 1, 1])
    launch = from_function(attend_first_token).plan(SPEC, case.batch)
    got = launch(case.query, case.pools)
    assert torch.allclose(got.double(), paged.expected(case)[0])


def test_the_scale_of_the_spec_is_passed_on(paged):
    seen = []
    kernel = from_function(lambda *args, scale: seen.append(scale))
    for spec in (SPEC, AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8, block_size=4, scale=0.25)):
        case = paged.case(spec, [1], [1])
        kernel.plan(spec, case.batch)(case.query, case.pools)
    assert seen == pytest.approx([8**-0.5, 0.25])


def test_nothing_is_declared_unless_it_is_given():
    kernel = from_function(attend_first_token)
    assert kernel.features == frozenset()
    assert kernel.unsupported(SPEC) is None
    assert kernel.arithmetic(SPEC) == {}


@pytest.mark.parametrize("changes", [{"k_scale": 0.5}, {"v_scale": 2.0}, {"kv_scales": "head"}])
def test_scales_that_a_function_would_never_see_are_refused(changes):
    kernel = from_function(attend_first_token, features={"fp8", "head_scales"})
    assert "a function is given none" in kernel.unsupported(replace(SPEC, **changes))


def test_declarations_are_kept():
    kernel = from_function(
        attend_first_token,
        features={"out"},
        unsupported=lambda spec: "only 16" if spec.block_size != 16 else None,
        arithmetic={"p": "float32"},
    )
    assert kernel.features == {"out"}
    assert kernel.unsupported(SPEC) == "only 16"
    assert kernel.arithmetic(SPEC) == {"p": "float32"}
