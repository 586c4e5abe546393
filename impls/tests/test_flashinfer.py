"""The FlashInfer adapter binds to the real signatures, and its arguments mean what the contract means.

The library's wrappers are played by what their documentation promises, in float64, so that a wrong page index, length,
window or LSE base gives a wrong number here, without a GPU.
"""

import importlib.util
import inspect
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls import flashinfer_wrappers
from kvproof_impls.contract import AttentionSpec
from kvproof_impls.flashinfer_wrappers import WORKSPACE_BYTES, FlashInferKernel, page_indices

DECODE = ([17, 1, 4, 5, 0], [1, 1, 1, 1, 1])
MIXED = ([17, 4, 9, 8, 0], [3, 4, 1, 2, 1])
OPTIONS = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.7},
    "bfloat16": {"dtype": "bfloat16"},
}


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": 4, "dtype": "float16"}
    return AttentionSpec(**shape | options)


def attend_paged(paged, plan, causal, query_start, run):
    """Float64 outputs and base-2 LSEs from pages in compressed rows."""
    key, value = run["paged_kv_cache"]
    indptr, indices, last = (plan[name].tolist() for name in ("indptr", "indices", "last_page_len"))
    spec = AttentionSpec(
        plan["num_qo_heads"],
        plan["num_kv_heads"],
        plan["head_dim"],
        plan["page_size"],
        scale=plan["sm_scale"],
        causal=causal,
        window=None if plan["window_left"] < 0 else plan["window_left"] + 1,
        softcap=plan["logits_soft_cap"] or None,
    )
    assert run["q"].dtype == plan["q_data_type"]
    assert key.dtype == plan["kv_data_type"]
    outs, lses = [], []
    for i, last_page_len in enumerate(last):
        own = indices[indptr[i] : indptr[i + 1]]
        assert 1 <= last_page_len <= spec.block_size
        length = (len(own) - 1) * spec.block_size + last_page_len if own else 0
        keys, values = (pool[own].flatten(0, 1)[:length] for pool in (key, value))
        rows = range(query_start[i], query_start[i + 1])
        for row in rows:
            position = length - len(rows) + row - rows[0]
            pieces = [paged.row(spec, q, position, head, keys, values) for head, q in enumerate(run["q"][row])]
            outs.append(torch.stack([out for out, _ in pieces]))
            lses.append([lse / math.log(2) for _, lse in pieces])
    result = torch.stack(outs).to(run["q"].dtype)
    if run["out"] is not None:
        result = run["out"].copy_(result)
    return (result, torch.tensor(lses, dtype=torch.float32)) if run["return_lse"] else result


@pytest.fixture
def library(monkeypatch, paged, recorded):
    """A ``flashinfer`` that checks each call against the recorded signature, then keeps and answers it."""
    calls = []

    def bind(name, *args, **options):
        target = recorded
        for part in name.split("."):
            target = getattr(target, part)
        bound = inspect.signature(target).bind(*args, **options)
        bound.apply_defaults()
        calls.append((name, bound.arguments))
        return bound.arguments

    class Decode:
        def __init__(self, *args, **options):
            bind("BatchDecodeWithPagedKVCacheWrapper.__init__", self, *args, **options)

        def plan(self, *args, **options):
            self.planned = bind("BatchDecodeWithPagedKVCacheWrapper.plan", self, *args, **options)

        def run(self, *args, **options):
            bound = bind("BatchDecodeWithPagedKVCacheWrapper.run", self, *args, **options)
            return attend_paged(paged, self.planned, True, range(len(bound["q"]) + 1), bound)

    class Prefill:
        def __init__(self, *args, **options):
            bind("BatchPrefillWithPagedKVCacheWrapper.__init__", self, *args, **options)

        def plan(self, *args, **options):
            self.planned = bind("BatchPrefillWithPagedKVCacheWrapper.plan", self, *args, **options)

        def run(self, *args, **options):
            bound = bind("BatchPrefillWithPagedKVCacheWrapper.run", self, *args, **options)
            plan = {name.removeprefix("paged_kv_"): value for name, value in self.planned.items()}
            plan["head_dim"] = plan["head_dim_qk"]
            return attend_paged(paged, plan, plan["causal"], plan["qo_indptr"].tolist(), bound)

    def append(*args, **options):
        bound = bind("append_paged_kv_cache", *args, **options)
        indptr, indices = bound["kv_indptr"].tolist(), bound["kv_indices"].tolist()
        places = zip(bound["batch_indices"].tolist(), bound["positions"].tolist(), strict=True)
        for token, (sequence, position) in enumerate(places):
            page, offset = divmod(position, bound["paged_kv_cache"][0].shape[1])
            assert indptr[sequence] + page < indptr[sequence + 1]
            for pool, new in zip(bound["paged_kv_cache"], (bound["append_key"], bound["append_value"]), strict=True):
                pool[indices[indptr[sequence] + page], offset] = new[token]

    module = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=Decode,
        BatchPrefillWithPagedKVCacheWrapper=Prefill,
        append_paged_kv_cache=append,
    )
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer_wrappers, "WORKSPACE_BYTES", 4096)
    return calls


def run(case, **options):
    kernel = FlashInferKernel()
    assert kernel.unsupported(case.spec) is None
    return kernel.plan(case.spec, case.batch)(case.query, case.pools, **options)


@pytest.mark.parametrize("shape", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_output_and_natural_lse_are_those_of_dense_attention(paged, library, option, shape):
    case = paged.case(make_spec(return_lse=True, **OPTIONS[option]), *shape)
    out, lse = run(case)
    want_out, want_lse = paged.expected(case)
    assert torch.equal(out, want_out.to(out.dtype))
    assert torch.allclose(lse, want_lse.float(), rtol=3e-7, atol=0)


def test_a_prefill_without_a_causal_mask_sees_everything(paged, library):
    case = paged.case(make_spec(causal=False), *MIXED)
    assert torch.equal(run(case), paged.expected(case)[0].half())


@pytest.mark.parametrize(("shape", "wrapper"), [(DECODE, "BatchDecode"), (MIXED, "BatchPrefill")])
def test_one_row_a_sequence_takes_the_decode_wrapper_and_all_else_prefill(paged, library, shape, wrapper):
    run(paged.case(make_spec(), *shape))
    steps = [name.split(".") for name, _ in library]
    assert steps == [[f"{wrapper}WithPagedKVCacheWrapper", step] for step in ("__init__", "plan", "run")]


def test_pages_are_those_that_hold_tokens_in_order(paged):
    case = paged.case(make_spec(), [9, 0, 4, 5], [1, 1, 1, 1])
    pages = page_indices(case.batch, 4)
    table = case.batch.block_tables
    assert pages.indptr.tolist() == [0, 3, 3, 4, 6]
    assert pages.indices.tolist() == [*table[0, :3].tolist(), table[2, 0], *table[3, :2].tolist()]
    assert pages.last_page_len.tolist() == [1, 4, 4, 1]
    assert {pages.indptr.dtype, pages.indices.dtype, pages.last_page_len.dtype} == {torch.int32}


@pytest.mark.parametrize(("num_q_heads", "tensor_cores"), [(2, False), (8, False), (10, True), (14, True), (32, False)])
def test_groups_without_a_cuda_core_kernel_go_to_the_tensor_cores(paged, library, num_q_heads, tensor_cores):
    case = paged.case(make_spec(num_q_heads=num_q_heads), [3], [1])
    run(case)
    assert library[0][1]["use_tensor_cores"] is tensor_cores


def test_the_workspace_is_128_mib_and_made_once(paged, library, monkeypatch):
    monkeypatch.setattr(flashinfer_wrappers, "WORKSPACE_BYTES", WORKSPACE_BYTES)
    kernel, case = FlashInferKernel(), paged.case(make_spec(), *DECODE)
    for _ in range(2):
        kernel.plan(case.spec, case.batch)
    made = [bound["float_workspace_buffer"] for name, bound in library if name.endswith("__init__")]
    assert made[0].numel() * made[0].element_size() == 128 * 2**20
    assert made[0] is made[1]


def test_a_launch_to_reuse_keeps_its_wrapper_unless_the_spec_or_the_kind_of_step_differs(paged, library):
    kernel = FlashInferKernel()
    decode, mixed = paged.case(make_spec(), *DECODE), paged.case(make_spec(), *MIXED)
    first = kernel.plan(decode.spec, decode.batch)
    assert kernel.plan(decode.spec, decode.batch, reuse=first).wrapper is first.wrapper
    assert kernel.plan(mixed.spec, mixed.batch, reuse=first).wrapper is not first.wrapper
    assert kernel.plan(make_spec(window=3), decode.batch, reuse=first).wrapper is not first.wrapper


def test_a_given_output_is_handed_to_the_library(paged, library):
    case = paged.case(make_spec(), *MIXED)
    out = torch.full_like(case.query, math.nan)
    assert run(case, out=out) is out
    assert torch.equal(out, paged.expected(case)[0].half())


def test_a_write_reaches_its_slots_and_nothing_else(paged, library):
    case = paged.case(make_spec(), [7], [1], poison=5.0)
    before = [case.pools.key.clone(), case.pools.value.clone()]
    new = [torch.randn(4, 2, 64).half(), torch.randn(4, 2, 64).half()]
    FlashInferKernel().write(case.spec, *new, case.pools, torch.tensor([7, -1, 0, 13]))
    for pool, old, rows in zip((case.pools.key, case.pools.value), before, new, strict=True):
        old[1, 3], old[0, 0], old[3, 1] = rows[0], rows[2], rows[3]
        assert torch.equal(pool, old)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float32"}, "float16 or bfloat16"),
        ({"kv_dtype": "float8_e4m3fn"}, "type of the query"),
        ({"head_dim": 80}, "64, 128, 256 only"),
        ({"value_dim": 32}, "one head size"),
        ({"k_scale": 0.5}, "quantised pools"),
        ({"alibi_slopes": (0.5,) * 4}, "slopes of its own"),
        ({"sinks": (0.0,) * 4}, "some of its backends"),
    ],
)
def test_every_limit_has_its_reason(options, reason):
    assert reason in FlashInferKernel().unsupported(make_spec(**options))


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="flashinfer-python is not installed here")
@pytest.mark.parametrize("name", ["__init__", "plan", "run"])
@pytest.mark.parametrize("wrapper", ["BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"])
def test_the_installed_package_takes_what_was_recorded(recorded, wrapper, name):
    installed = inspect.signature(getattr(getattr(pytest.importorskip("flashinfer"), wrapper), name))
    used = inspect.signature(getattr(getattr(recorded, wrapper), name)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in installed.parameters.values())
    assert takes_any or set(used) <= set(installed.parameters)
