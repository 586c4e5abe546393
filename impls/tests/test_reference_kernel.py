"""The oracle behind the contract agrees with dense attention to the last rounding, whatever the options."""

import math

import pytest
import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_impls.reference import ReferenceKernel

OPTIONS = {
    "plain": {},
    "window": {"window": 3},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    "sinks": {"sinks": (0.5, -1.0, 3.0, 100.0)},
    "scales": {"scale": 0.7, "k_scale": 0.5, "v_scale": 2.0},
    "not causal": {"causal": False},
    "value dim": {"value_dim": 5},
}
MIXED = ([9, 1, 7, 0, 12, 3, 2], [1, 1, 7, 1, 5, 0, 4])


def make_spec(**options):
    return AttentionSpec(
        **{"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 4, "dtype": "float32"} | options
    )


def run(case, **options):
    return ReferenceKernel().plan(case.spec, case.batch)(case.query, case.pools, **options)


@pytest.mark.parametrize("option", OPTIONS)
def test_output_and_lse_are_those_of_dense_attention_rounded_once(paged, option):
    case = paged.case(make_spec(return_lse=True, **OPTIONS[option]), *MIXED)
    out, lse = run(case)
    want_out, want_lse = paged.expected(case)
    assert out.dtype == lse.dtype == torch.float32
    assert torch.allclose(out.double(), want_out, rtol=2.0**-23, atol=1e-13)
    assert torch.allclose(lse.double(), want_lse, rtol=2.0**-23, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_output_has_the_type_of_the_query(paged, dtype):
    case = paged.case(make_spec(dtype=dtype), *MIXED)
    got = run(case)
    assert got.dtype == getattr(torch, dtype)
    assert torch.equal(got, paged.expected(case)[0].to(got.dtype))


def test_only_slots_that_some_row_may_see_are_read(paged):
    case = paged.case(make_spec(window=3), [8, 8], [2, 2])  # the first row sees positions 4 to 6
    want = run(case)
    case.batch.block_tables[:, 0] = 10**6
    assert torch.equal(run(case), want)
    assert torch.isfinite(want).all()


def test_a_given_output_is_written_in_place(paged):
    case = paged.case(make_spec(), *MIXED)
    out = torch.full_like(case.query, math.nan)
    assert run(case, out=out) is out
    assert torch.isfinite(out).all()


def test_write_touches_its_slots_and_copies_are_whole_blocks(paged):
    case = paged.case(make_spec(k_scale=0.5), [7], [1], poison=5.0)
    kernel, before = ReferenceKernel(), case.pools.key.clone()
    key, value = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    kernel.write(case.spec, key, value, case.pools, torch.tensor([6, -1, 1]))
    kernel.copy_blocks(case.pools, [(1, 2), (1, 3)])
    before[1, 2], before[0, 1] = key[0] * 2, key[2] * 2
    before[2], before[3] = before[1], before[1]
    assert torch.equal(case.pools.key, before)
    assert torch.equal(case.pools.value[3, 2], value[0])


def test_latent_attention_reads_value_from_key(paged):
    case = paged.case(make_spec(num_kv_heads=1, value_dim=5), *MIXED)
    case.pools = KVPools(case.pools.key, case.pools.key[..., :5])
    case.values = [key[..., :5] for key in case.keys]
    assert torch.allclose(run(case).double(), paged.expected(case)[0], rtol=2.0**-23, atol=1e-13)


def test_quantised_pools_are_refused():
    assert "kv_dtype 'int8'" in ReferenceKernel().unsupported(make_spec(kv_dtype="int8"))
    assert "scales a token" in ReferenceKernel().unsupported(make_spec(kv_scales="token"))
