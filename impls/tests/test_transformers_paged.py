"""transformers' attention behind the contract: its indices, its mask, its two functions, on the pools as they are."""

import importlib.util
import inspect
import sys
from types import ModuleType

import pytest
import torch

from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_impls.transformers_paged import EagerTransformersKernel, TransformersKernel

BATCHING = "transformers.generation.continuous_batching"
CALLED = {
    f"{BATCHING}.cache_allocators": "FullAttentionCacheAllocator",
    f"{BATCHING}.utils": "build_attention_mask",
    "transformers.integrations.sdpa_attention": "sdpa_attention_forward",
    "transformers.integrations.eager_paged": "eager_paged_attention_forward",
}


@pytest.fixture(params=[TransformersKernel, EagerTransformersKernel])
def kernel(request, recorded_attention, monkeypatch):
    for module, name in CALLED.items():
        for parent in [module.rsplit(".", depth)[0] for depth in range(module.count("."), 0, -1)]:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
        setattr(sys.modules[module], name, getattr(recorded_attention, name))
    return request.param()


def make_spec(**options):
    return AttentionSpec(**{"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 4} | options)


@pytest.mark.parametrize(
    ("context_lens", "query_lens"), [([1, 4, 5], [1, 1, 1]), ([6, 4], [6, 4]), ([9, 1, 7], [3, 1, 7])]
)
def test_every_row_attends_to_its_own_sequence(kernel, paged, context_lens, query_lens):
    case = paged.case(make_spec(dtype="float32"), context_lens, query_lens)
    before = [pool.clone() for pool in (case.pools.key, case.pools.value)]
    got = kernel.plan(case.spec, case.batch)(case.query, case.pools)
    assert (got.double() - paged.expected(case)[0]).abs().max() <= 1e-6
    for pool, was in zip((case.pools.key, case.pools.value), before, strict=True):
        assert torch.equal(pool.view(torch.int32), was.view(torch.int32))  # NaN of unowned slots included


def test_a_given_output_is_filled(kernel, paged):
    case = paged.case(make_spec(dtype="float32"), [5], [2])
    out = torch.full_like(case.query, torch.nan)
    assert kernel.plan(case.spec, case.batch)(case.query, case.pools, out) is out
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("kernel", [EagerTransformersKernel], indirect=True)
def test_sinks_reach_the_module_that_adds_them(kernel, paged):
    spec = make_spec(dtype="float32", sinks=(0.5, -1.0, 3.0, 0.0))
    case = paged.case(spec, [6, 3], [2, 1])
    got = kernel.plan(spec, case.batch)(case.query, case.pools)
    assert (got.double() - paged.expected(case)[0]).abs().max() <= 1e-6


def test_without_paging_it_attends_to_the_whole_of_a_sequence(kernel, paged):
    spec = make_spec(dtype="float32")
    query, key, value = torch.randn(3, 4, 8), torch.randn(3, 5, 2, 8), torch.randn(3, 5, 2, 8)
    got = kernel.dense(spec, query, key, value)
    for i, head in ((0, 0), (2, 3)):
        assert (got[i, head] - paged.row(spec, query[i, head], 4, head, key[i], value[i])[0]).abs().max() <= 1e-6


def test_a_write_goes_to_its_slots_and_nowhere_for_padding(kernel):
    pools = KVPools(*(torch.zeros(2, 4, 2, 8) for _ in range(2)))
    new = torch.arange(3.0)[:, None, None].expand(3, 2, 8) + 1
    kernel.write(make_spec(dtype="float32"), new, -new, pools, torch.tensor([5, -1, 0]))
    assert pools.key.flatten(0, 1)[:, 0, 0].tolist() == [3, 0, 0, 0, 0, 1, 0, 0]
    assert pools.value.flatten(0, 1)[:, 0, 0].tolist() == [-3, 0, 0, 0, 0, -1, 0, 0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv_dtype": "int8"}, "the type of the model"),
        ({"value_dim": 4}, "share one tensor"),
        ({"v_scale": 0.5}, "scales"),
        ({"causal": False}, "not causal"),
    ],
)
def test_what_it_can_not_do_is_refused_by_name(kernel, paged, options, reason):
    spec = make_spec(dtype="float32", **options)
    assert reason in kernel.unsupported(spec)
    with pytest.raises(ValueError, match=reason):
        kernel.plan(spec, paged.case(make_spec(), [5], [1]).batch)


def test_queries_before_the_first_position_and_pools_with_gaps_are_errors(kernel, paged):
    case = paged.case(make_spec(dtype="float32"), [2], [3])
    with pytest.raises(ValueError, match="before position 0"):
        kernel.plan(case.spec, case.batch)
    case = paged.case(make_spec(dtype="float32"), [2], [1])
    wide = torch.zeros(len(case.pools.key), 7, 2, 8)[:, :4]
    with pytest.raises(ValueError, match="value pool has strides"):
        kernel.plan(case.spec, case.batch)(case.query, KVPools(case.pools.key, wide))


def test_attention_written_out_is_judged_in_float32_alone():
    assert "before they are scaled" in EagerTransformersKernel().unsupported(make_spec(dtype="bfloat16"))
    assert TransformersKernel().unsupported(make_spec(dtype="bfloat16")) is None


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed here")
@pytest.mark.parametrize("module", CALLED)
def test_the_installed_library_takes_what_was_recorded(recorded_attention, module):
    real = getattr(importlib.import_module(module), CALLED[module])
    double = getattr(recorded_attention, CALLED[module])
    methods = ("get_read_indices", "get_write_indices", "update") if isinstance(double, type) else (None,)
    for name in methods:
        pair = (double, real) if name is None else (getattr(double, name), getattr(real, name))
        assert list(inspect.signature(pair[0]).parameters) == list(inspect.signature(pair[1]).parameters)
