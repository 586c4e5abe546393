"""The Triton kernels behind the contract: what they take, what they refuse, what they declare."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kvproof_impls.contract import DEFAULT_ARITHMETIC, FEATURES, AttentionSpec, KVPools, PagedKernel
from kvproof_impls.triton_kernels import TritonKernel

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=64, block_size=16, dtype="float32", return_lse=True)


def launch(case, kernel=None, **options):
    kernel = kernel or TritonKernel("cpu")
    return kernel.plan(case.spec, case.batch)(case.query, case.pools, **options)


def test_it_has_the_shape_of_the_contract():
    kernel = TritonKernel()
    assert isinstance(kernel, PagedKernel)
    assert kernel.features <= set(FEATURES)
    assert set(kernel.arithmetic(SPEC)) <= set(DEFAULT_ARITHMETIC)


@pytest.mark.parametrize(
    ("context_lens", "query_lens"),
    [([5, 33, 0], [1, 1, 1]), ([20, 9], [20, 9]), ([20, 9, 40], [7, 1, 2]), ([3], [6])],
    ids=["decode", "prefill", "mixed", "more rows than context"],
)
def test_output_and_lse_are_those_of_dense_attention(paged, context_lens, query_lens):
    case = paged.case(SPEC, context_lens, query_lens, padding_id=2**30)
    out, lse = launch(case)
    want, want_lse = paged.expected(case)
    # A thousand roundings of float32: rows of up to 40 keys and 64 dims, scores below 10.
    torch.testing.assert_close(out.double(), want, rtol=0, atol=1000 * 2.0**-24)
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=1000 * 2.0**-24)


@pytest.mark.parametrize("query_lens", [[1, 1], [4, 1]])
def test_it_writes_into_a_given_output(paged, query_lens):
    case = paged.case(replace(SPEC, return_lse=False), [5, 30], query_lens)
    out = torch.full((sum(query_lens), 4, 64), math.nan)
    assert launch(case, out=out) is out
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float64"}, "dtype float64: float16, bfloat16, float32 only"),
        ({"dtype": "float8_e9m9"}, "dtype float8_e9m9: torch does not know it"),
        (
            {"kv_dtype": "float16"},
            "kv_dtype float16 with dtype float32: float32, float8_e4m3fn, float8_e5m2, int8 only",
        ),
        ({"causal": False}, "attention that is not causal"),
        ({"kv_scales": "head"}, "scales a head for float32: pools of 8 bits only"),
        ({"head_dim": 72}, "head_dim 72: a multiple of 16, at most 576"),
        ({"head_dim": 576}, "head_dim 576: above 512 only with mla and value_dim 512"),
        ({"value_dim": 528}, "value_dim 528: a multiple of 16, at most 512"),
    ],
)
def test_what_it_cannot_do_is_declared_and_refused(paged, changes, reason):
    kernel, spec = TritonKernel(), replace(SPEC, **changes)
    assert (kernel.unsupported(spec) or "").startswith(reason)
    with pytest.raises(ValueError, match=f"the triton kernels do not support {reason}"):
        kernel.plan(spec, paged.case(SPEC, [5], [1]).batch)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_the_issue_asks_for_is_supported(head_dim, dtype):
    for block_size in (1, 3, 16, 256, 544):
        assert TritonKernel().unsupported(AttentionSpec(8, 1, head_dim, block_size, dtype)) is None


def test_arithmetic_follows_the_place_where_the_kernels_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    interpreted, compiled = TritonKernel("cpu"), TritonKernel("cuda")
    bfloat16 = replace(SPEC, dtype="bfloat16")
    assert interpreted.arithmetic(bfloat16)["output_rounding"] == "toward_zero"
    assert interpreted.arithmetic(bfloat16)["p"] == "float32"
    assert compiled.arithmetic(bfloat16)["output_rounding"] == "nearest"
    assert compiled.arithmetic(bfloat16)["p"] == "bfloat16"
    assert interpreted.arithmetic(replace(SPEC, dtype="float16"))["p"] == "float16"


def test_the_declared_truncation_is_what_happens(paged):
    """Output 1 + 3/4 ulp of bfloat16 comes out as 1: if the interpreter ever rounds, the declaration is stale."""
    case = paged.case(replace(SPEC, dtype="bfloat16", return_lse=False), [4], [1])
    case.query.zero_()
    case.pools.value[case.batch.block_tables[0, 0], :3] = 1 + 2.0**-7
    case.pools.value[case.batch.block_tables[0, 0], 3] = 1
    assert torch.all(launch(case) == 1)


@pytest.mark.parametrize("query_lens", [[1], [12]])
def test_the_tile_can_be_forced(paged, query_lens):
    case = paged.case(SPEC, [100], query_lens)
    kernel = TritonKernel("cpu", block_n=16)
    assert kernel.arithmetic(SPEC)["tile"] == 16
    out, _ = launch(case, kernel)
    wide, _ = launch(case)
    torch.testing.assert_close(out, wide, rtol=0, atol=1000 * 2.0**-24)
    assert not torch.equal(out, wide)


def test_write_and_copy_reach_the_pools():
    kernel, pools = TritonKernel(), KVPools(torch.zeros(4, 16, 2, 64), torch.zeros(4, 16, 2, 64))
    key = torch.randn(2, 2, 64)
    kernel.write(SPEC, key, -key, pools, torch.tensor([17, -1]))
    kernel.copy_blocks(pools, [(1, 3)])
    assert torch.equal(pools.key[3, 1], key[0])
    assert torch.equal(pools.value[1, 1], -key[0])
    assert torch.count_nonzero(pools.key[0]) + torch.count_nonzero(pools.key[2]) == 0


def test_a_cpu_means_the_interpreter_whose_time_says_nothing():
    assert TritonKernel("cpu").interpreted is True


def test_resources_are_those_of_the_decode_kernel_on_each_target():
    spec = replace(SPEC, dtype="float16", head_dim=64)
    small, large = (
        TritonKernel("cpu").resources(spec, ["sm_90"]),
        TritonKernel("cpu").resources(replace(spec, head_dim=256), ["sm_90"]),
    )
    assert [(row.kernel, row.target) for row in small] == [("attention, decode rows", "sm_90")]
    assert 0 < small[0].shared_bytes < large[0].shared_bytes
