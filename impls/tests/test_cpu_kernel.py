"""The compiled CPU kernel behind the contract: what it takes, every option of it, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("numba")

from kvproof_impls.contract import DEFAULT_ARITHMETIC, FEATURES, AttentionSpec, KVPools, PagedKernel
from kvproof_impls.cpu_kernel import CpuKernel

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=32, block_size=4, dtype="float32", return_lse=True)
# A thousand roundings of float32: rows of up to 40 keys and 32 dims, scores below 10.
THOUSAND_ROUNDINGS = 1000 * 2.0**-24


def launch(case, **options):
    return CpuKernel().plan(case.spec, case.batch)(case.query, case.pools, **options)


def test_it_has_the_shape_of_the_contract():
    kernel = CpuKernel()
    assert isinstance(kernel, PagedKernel)
    assert kernel.features <= set(FEATURES)
    assert set(kernel.arithmetic(SPEC)) <= set(DEFAULT_ARITHMETIC)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"causal": False},
        {"window": 1},
        {"window": 7},
        {"softcap": 0.5},
        {"alibi_slopes": (0.5, 0.25, 0.125, 2.0)},
        {"sinks": (0.0, 3.0, -3.0, 20.0)},
        {"scale": 3.0},
        {"k_scale": 2.0, "v_scale": 0.5},
        {"window": 7, "softcap": 2.0, "alibi_slopes": (0.5, 0.25, 0.125, 2.0), "sinks": (0.0, 3.0, -3.0, 20.0)},
    ],
    ids=str,
)
def test_every_option_gives_what_dense_attention_gives(paged, changes):
    case = paged.case(replace(SPEC, **changes), [5, 20, 40, 0], [1, 20, 7, 2], padding_id=2**30)
    out, lse = launch(case)
    want, want_lse = paged.expected(case)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=THOUSAND_ROUNDINGS)
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=THOUSAND_ROUNDINGS)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")]
)
def test_pools_may_be_of_another_type_than_the_query(paged, dtype, kv_dtype):
    case = paged.case(replace(SPEC, dtype=dtype, kv_dtype=kv_dtype), [5, 20], [1, 3])
    out, _ = launch(case)
    want, _ = paged.expected(case)
    unit = torch.finfo(out.dtype).eps / 2
    torch.testing.assert_close(out.double(), want, rtol=unit, atol=THOUSAND_ROUNDINGS)


def test_the_lse_is_returned_where_it_is_asked_for(paged):
    case = paged.case(replace(SPEC, return_lse=False), [5, 30], [1, 4])
    out = torch.full((5, 4, 32), torch.nan)
    assert launch(case, out=out) is out
    assert out.isfinite().all()


def test_what_it_cannot_do_is_declared_and_refused(paged):
    for changes, reason in (
        ({"dtype": "float64"}, "dtype float64: float16, bfloat16, float32 only"),
        ({"kv_dtype": "float8_e4m3fn"}, "kv_dtype float8_e4m3fn: float16, bfloat16, float32 only"),
        ({"kv_scales": "head"}, "scales a head: k_scale and v_scale only"),
    ):
        spec = replace(SPEC, **changes)
        assert CpuKernel().unsupported(spec) == reason
        with pytest.raises(ValueError, match=f"the cpu kernel does not support {reason}"):
            CpuKernel().plan(spec, paged.case(SPEC, [5], [1]).batch)


def test_dense_is_the_same_arithmetic_on_other_addresses(paged):
    case = paged.case(replace(SPEC, return_lse=False), [40, 40], [1, 1])
    dense = CpuKernel().dense(case.spec, case.query, torch.stack(case.keys), torch.stack(case.values))
    assert torch.equal(dense, launch(case))


def test_write_and_copy_reach_the_pools():
    pools = KVPools(torch.zeros(4, 4, 2, 32), torch.zeros(4, 4, 2, 32))
    key = torch.randn(2, 2, 32)
    CpuKernel().write(SPEC, key, -key, pools, torch.tensor([5, -1]))
    CpuKernel().copy_blocks(pools, [(1, 3)])
    assert torch.equal(pools.key[3, 1], key[0])
    assert torch.equal(pools.value[1, 1], -key[0])
    assert torch.count_nonzero(pools.key[0]) + torch.count_nonzero(pools.key[2]) == 0


def test_latent_attention_writes_its_keys_alone():
    pool = torch.zeros(2, 4, 2, 32)
    spec = replace(SPEC, mla=True, value_dim=24)
    key = torch.randn(1, 2, 32)
    CpuKernel().write(spec, key, torch.full((1, 2, 24), 7.0), KVPools(pool, pool[..., :24]), torch.tensor([5]))
    assert torch.equal(pool[1, 1], key[0])
    assert torch.count_nonzero(pool) == key.numel()


def test_of_latent_attention_the_keys_alone_are_written_and_copied():
    key_pool = torch.zeros(4, 4, 1, 32)
    pools = KVPools(key_pool, key_pool[..., :20])
    key = torch.randn(2, 1, 32)
    spec = replace(SPEC, num_kv_heads=1, mla=True, value_dim=20)
    CpuKernel().write(spec, key, torch.full((2, 1, 20), torch.nan), pools, torch.tensor([5, 6]))
    CpuKernel().copy_blocks(pools, [(1, 3)])
    assert torch.equal(key_pool[3, 1:3], key)


def test_a_scale_of_the_pool_divides_what_is_stored():
    pools = KVPools(torch.zeros(4, 4, 2, 32, dtype=torch.bfloat16), torch.zeros(4, 4, 2, 32, dtype=torch.bfloat16))
    key = torch.randn(1, 2, 32)
    CpuKernel().write(replace(SPEC, kv_dtype="bfloat16", k_scale=0.3), key, key, pools, torch.tensor([5]))
    assert torch.equal(pools.key[1, 1], (key[0] / 0.3).bfloat16())
    assert torch.equal(pools.value[1, 1], key[0].bfloat16())


@pytest.mark.parametrize("copies", [[(0, 1), (1, 2)], [(0, 1), (2, 1)], [(0, 0)]])
def test_copies_that_reach_into_each_other_are_refused(copies):
    pools = KVPools(torch.zeros(4, 4, 2, 32), torch.zeros(4, 4, 2, 32))
    with pytest.raises(ValueError, match="a destination is another pair's source or destination"):
        CpuKernel().copy_blocks(pools, copies)
