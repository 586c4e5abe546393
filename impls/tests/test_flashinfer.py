"""The FlashInfer adapter binds to the real signatures, and its arguments mean what the contract means.

The library is played by a double: ``flashinfer_double.py``.
"""

import importlib.util
import inspect
import math
from dataclasses import replace

import pytest
import torch

from kvproof_impls import flashinfer_wrappers as wrappers
from kvproof_impls.contract import AttentionSpec
from kvproof_impls.flashinfer_pages import WORKSPACE_BYTES, page_indices
from kvproof_impls.flashinfer_wrappers import FlashInferKernel

DECODE = ([17, 1, 4, 5, 0], [1, 1, 1, 1, 1])
MIXED = ([17, 4, 9, 8, 0], [3, 4, 1, 2, 1])
CODES = {"kv_dtype": "float8_e4m3fn", "k_scale": 0.5, "v_scale": 2.0}
SINKS = {"sinks": (0.5, -1.5, 0.0, 1.5)}
OPTIONS = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.7},
    "bfloat16": {"dtype": "bfloat16"},
    "sinks": SINKS,
    "sinks and window": {**SINKS, "window": 3},
    "8 bits": CODES,
    "8 bits and sinks": {**CODES, **SINKS},
    "8 bits, bfloat16": {**CODES, "dtype": "bfloat16"},
}
BACKENDS = ("auto", "fa2", "fa2_hnd", "fa3", "trtllm_gen", "cudnn")


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": 4, "dtype": "float16"}
    return AttentionSpec(**shape | options)


def of(backend, **options):
    """A kernel, and a spec with the block size that it takes."""
    kernel = getattr(wrappers, backend)()
    sizes = kernel.backend.block_sizes or (4,)
    return kernel, make_spec(**{"block_size": sizes[0], **options})


def run(kernel, case, **options):
    assert kernel.unsupported(case.spec) is None
    return kernel.plan(case.spec, case.batch)(case.query, case.pools, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_output_and_natural_lse_are_those_of_dense_attention(paged, flashinfer_calls, option, shape, backend):
    kernel, spec = of(backend, return_lse=True, **OPTIONS[option])
    if kernel.unsupported(spec) is not None:
        assert option not in ("plain", "scale", "bfloat16")
        return
    case = paged.case(spec, *shape)
    out, lse = run(kernel, case)
    want_out, want_lse = paged.expected(case)
    assert torch.equal(out, want_out.to(out.dtype))
    assert torch.allclose(lse, want_lse.float(), rtol=3e-7, atol=0)


@pytest.mark.parametrize(
    ("backend", "refused"),
    [
        ("auto", set()),
        ("fa2", set()),
        ("fa2_hnd", set()),
        ("fa3", {"8 bits", "8 bits and sinks", "8 bits, bfloat16"}),
        ("trtllm_gen", {"softcap", "8 bits", "8 bits and sinks"}),
        ("cudnn", set(OPTIONS) - {"plain", "scale", "bfloat16"}),
    ],
)
def test_a_back_end_refuses_what_one_of_its_wrappers_does_not_take(backend, refused):
    specs = {option: of(backend, **chosen) for option, chosen in OPTIONS.items()}
    assert {option for option, (kernel, spec) in specs.items() if kernel.unsupported(spec)} == refused


def test_a_prefill_without_a_causal_mask_sees_everything(paged, flashinfer_calls):
    case = paged.case(make_spec(causal=False), *MIXED)
    assert torch.equal(run(FlashInferKernel(), case), paged.expected(case)[0].half())


@pytest.mark.parametrize(
    ("shape", "options", "wrapper"),
    [
        (DECODE, {}, "BatchDecodeWithPagedKVCacheWrapper"),
        (MIXED, {}, "BatchPrefillWithPagedKVCacheWrapper"),
        (DECODE, SINKS, "BatchAttentionWithAttentionSinkWrapper"),
    ],
)
def test_one_row_a_sequence_takes_the_decode_wrapper_and_all_else_prefill(
    paged, flashinfer_calls, shape, options, wrapper
):
    run(wrappers.fa2(), paged.case(make_spec(**options), *shape))
    assert [name.split(".") for name, _ in flashinfer_calls] == [
        [wrapper, step] for step in ("__init__", "plan", "run")
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_wrapper_is_told_its_back_end_and_layout(paged, flashinfer_calls, backend):
    kernel, spec = of(backend)
    for shape in (DECODE, MIXED):
        run(kernel, paged.case(spec, *shape))
    made = [bound for name, bound in flashinfer_calls if name.endswith("__init__")]
    assert {(bound["backend"], bound["kv_layout"]) for bound in made} == {(kernel.backend.name, kernel.pool_order)}


def test_pages_are_those_that_hold_tokens_in_order_and_none_counts_none(paged):
    case = paged.case(make_spec(), [9, 0, 4, 5], [1, 1, 1, 1])
    pages = page_indices(case.batch, 4)
    table = case.batch.block_tables
    assert pages.indptr.tolist() == [0, 3, 3, 4, 6]
    assert pages.indices.tolist() == [*table[0, :3].tolist(), table[2, 0], *table[3, :2].tolist()]
    assert pages.last_page_len.tolist() == [1, 0, 4, 1]
    assert {pages.indptr.dtype, pages.indices.dtype, pages.last_page_len.dtype} == {torch.int32}


@pytest.mark.parametrize(("num_q_heads", "tensor_cores"), [(2, False), (8, False), (10, True), (14, True), (32, False)])
def test_groups_without_a_cuda_core_kernel_go_to_the_tensor_cores(paged, flashinfer_calls, num_q_heads, tensor_cores):
    run(FlashInferKernel(), paged.case(make_spec(num_q_heads=num_q_heads), [3], [1]))
    assert flashinfer_calls[0][1]["use_tensor_cores"] is tensor_cores


def test_the_workspace_is_128_mib_and_made_once(paged, flashinfer_calls, monkeypatch):
    monkeypatch.setattr("kvproof_impls.flashinfer_pages.WORKSPACE_BYTES", WORKSPACE_BYTES)
    kernel, case = FlashInferKernel(), paged.case(make_spec(), *DECODE)
    for _ in range(2):
        kernel.plan(case.spec, case.batch)
    made = [bound["float_workspace_buffer"] for name, bound in flashinfer_calls if name.endswith("__init__")]
    assert made[0].numel() * made[0].element_size() == 128 * 2**20
    assert made[0] is made[1]


def test_a_launch_to_reuse_keeps_its_wrapper_unless_the_spec_or_the_kind_of_step_differs(paged, flashinfer_calls):
    kernel = FlashInferKernel()
    decode, mixed = paged.case(make_spec(), *DECODE), paged.case(make_spec(), *MIXED)
    first = kernel.plan(decode.spec, decode.batch)
    assert kernel.plan(decode.spec, decode.batch, reuse=first).wrapper is first.wrapper
    assert kernel.plan(mixed.spec, mixed.batch, reuse=first).wrapper is not first.wrapper
    assert kernel.plan(make_spec(window=3), decode.batch, reuse=first).wrapper is not first.wrapper


def test_a_given_output_is_handed_to_the_library(paged, flashinfer_calls):
    case = paged.case(make_spec(), *MIXED)
    out = torch.full_like(case.query, math.nan)
    assert run(FlashInferKernel(), case, out=out) is out
    assert torch.equal(out, paged.expected(case)[0].half())


@pytest.mark.parametrize("backend", ["fa2", "fa2_hnd"])
@pytest.mark.parametrize("options", [{}, CODES], ids=["plain", "8 bits"])
def test_a_write_reaches_its_slots_and_nothing_else(paged, flashinfer_calls, options, backend):
    case = paged.case(make_spec(**options), [7], [1], poison=5.0)
    before = [case.pools.key.clone(), case.pools.value.clone()]
    new = [torch.randn(4, 2, 64).half(), 1000 * torch.randn(4, 2, 64).half()]
    getattr(wrappers, backend)().write(case.spec, *new, case.pools, torch.tensor([7, -1, 0, 13]))
    scales = (case.spec.k_scale, case.spec.v_scale)
    for pool, old, rows, scale in zip((case.pools.key, case.pools.value), before, new, scales, strict=True):
        if options:
            rows = (rows.float() / scale).clamp(-448, 448).to(pool.dtype)
        old[1, 3], old[0, 0], old[3, 1] = rows[0], rows[2], rows[3]
        assert torch.equal(pool.view(torch.uint8), old.view(torch.uint8))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float32"}, "float16 or bfloat16"),
        ({"kv_dtype": "int8"}, "type of the query"),
        ({"kv_dtype": "float8_e4m3fn", "kv_scales": "head"}, "one scale for all keys"),
        ({"head_dim": 80}, "64, 128, 256 only"),
        ({"value_dim": 32}, "one head size"),
        ({"k_scale": 0.5}, "8-bit pools"),
        ({"alibi_slopes": (0.5,) * 4}, "slopes of its own"),
        ({**SINKS, "softcap": 2.0}, "knows no soft cap"),
    ],
)
def test_every_limit_has_its_reason(options, reason):
    assert reason in FlashInferKernel().unsupported(make_spec(**options))


def test_blocks_that_a_back_end_answers_wrongly_are_refused():
    assert "16, 32, 64, 128 only" in wrappers.trtllm_gen().unsupported(make_spec(block_size=256))


def test_a_scale_that_is_no_power_of_two_rounds_the_output_twice():
    kernel, spec = FlashInferKernel(), make_spec(**CODES)
    assert kernel.arithmetic(spec)["output_rounding"] == "nearest"
    assert kernel.arithmetic(replace(spec, v_scale=0.3))["output_rounding"] == "toward_zero"


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="flashinfer-python is not installed here")
@pytest.mark.parametrize("name", ["__init__", "plan", "run"])
@pytest.mark.parametrize("wrapper", ["BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"])
def test_the_installed_package_takes_what_was_recorded(recorded_flashinfer, wrapper, name):
    installed = inspect.signature(getattr(getattr(pytest.importorskip("flashinfer"), wrapper), name))
    used = inspect.signature(getattr(getattr(recorded_flashinfer, wrapper), name)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in installed.parameters.values())
    assert takes_any or set(used) <= set(installed.parameters)
