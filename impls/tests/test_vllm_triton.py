"""vLLM's Triton kernels behind the contract: which calls are made, with what, on a CPU and on a GPU.

The library's entries, with the signatures of 0.32.0, are played by what their sources say, in float64.
"""

import importlib.util
import inspect
import json
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls import vllm_triton
from kvproof_impls.contract import AttentionSpec

DECODE = ([40, 1, 16, 17], [1, 1, 1, 1])
MIXED = ([40, 4, 17, 9], [3, 4, 1, 0])
OPTIONS = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    "sinks": {"sinks": (0.5, -1.0, 0.0, 2.0)},
    "scale": {"scale": 0.7},
    "not causal": {"causal": False},
}


def unified_attention(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    max_seqlen_q,
    seqused_k,
    max_seqlen_k,
    softmax_scale,
    causal,
    window_size,
    block_table,
    softcap,
    q_descale,
    k_descale,
    v_descale,
    seq_threshold_3D=None,
    num_par_softmax_segments=None,
    softmax_segm_output=None,
    softmax_segm_max=None,
    softmax_segm_expsum=None,
    alibi_slopes=None,
    output_scale=None,
    qq_bias=None,
    sinks=None,
    mm_prefix_range=None,
    rswa_prefix_lens=None,
    rswa_window=None,
    use_alibi_sqrt=False,
    kv_quant_mode=0,
    k_scale_cache=None,
    v_scale_cache=None,
    chunk_lookback=-1,
    use_td=False,
    mm_prefix_clamp_sliding_window=False,
): ...


def triton_reshape_and_cache_flash(
    key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
): ...


def reshape_and_cache_kernel_flash(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    k_scale,
    v_scale,
    key_stride,
    value_stride,
    block_stride,
    head_stride,
    dim_stride_k,
    dim_stride_v,
    page_stride,
    num_heads,
    head_size,
    block_size,
    x,
    USE_HEAD_MAJOR_LAYOUT,
    FP8_KV_CACHE,
    TILE_SIZE,
): ...


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "block_size": 16, "dtype": "float32"}
    return AttentionSpec(**shape | options)


def attend(call, paged):
    left, right = call.window_size
    assert (left < 0) == (right < 0)
    spec = make_spec(
        scale=call.softmax_scale,
        causal=call.causal,
        window=None if left < 0 else left + 1,
        softcap=call.softcap or None,
        alibi_slopes=None if call.alibi_slopes is None else tuple(call.alibi_slopes.tolist()),
        sinks=None if call.sinks is None else tuple(call.sinks.tolist()),
    )
    starts = call.cu_seqlens_q.tolist()
    for i, length in enumerate(call.seqused_k.tolist()):
        own = call.block_table[i, : -(-length // 16)].long()
        keys, values = (pool[own].flatten(0, 1)[:length] for pool in (call.k, call.v))
        for row in range(starts[i], starts[i + 1]):
            position = length - starts[i + 1] + row
            for head in range(spec.num_q_heads):
                call.out[row, head] = paged.row(spec, call.q[row, head], position, head, keys, values)[0]


@pytest.fixture
def library(monkeypatch, paged):
    """Each call is bound to its recorded signature, kept, and answered."""
    calls = []

    def bound(recorded, *args, **options):
        bound = inspect.signature(recorded).bind(*args, **options)
        bound.apply_defaults()
        calls.append(SimpleNamespace(name=recorded.__name__, **bound.arguments))
        return calls[-1]

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: setattr(
                bound(reshape_and_cache_kernel_flash, *args, **options), "grid", grid
            )

    played = SimpleNamespace(
        unified_attention=lambda *args, **options: attend(bound(unified_attention, *args, **options), paged),
        write=lambda *args: bound(triton_reshape_and_cache_flash, *args),
        write_kernel=Kernel(),
    )
    monkeypatch.setattr(vllm_triton, "library", lambda interpreted: played)
    return calls


def kernel_for(monkeypatch, on_gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    return vllm_triton.VllmTritonKernel()


@pytest.mark.parametrize("shape", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_the_output_is_that_of_dense_attention(paged, library, option, shape):
    case = paged.case(make_spec(**OPTIONS[option]), *shape)
    out = vllm_triton.VllmTritonKernel().plan(case.spec, case.batch)(case.query, case.pools)
    assert torch.equal(out, paged.expected(case)[0].float())


def test_a_given_output_is_filled_and_returned(paged, library):
    case = paged.case(make_spec(), *MIXED)
    out = torch.full_like(case.query, math.nan)
    assert vllm_triton.VllmTritonKernel().plan(case.spec, case.batch)(case.query, case.pools, out) is out
    assert torch.equal(out, paged.expected(case)[0].float())


@pytest.mark.parametrize(("on_gpu", "num_segments"), [(False, 4), (True, 16)])
def test_segments_have_room_for_every_row_and_a_padded_dim(paged, library, monkeypatch, on_gpu, num_segments):
    case = paged.case(make_spec(head_dim=80), *DECODE)
    segments = kernel_for(monkeypatch, on_gpu)._segments(case.spec, case.batch)
    assert (segments["seq_threshold_3D"], segments["num_par_softmax_segments"]) == (64, num_segments)
    assert segments["softmax_segm_output"].shape == (4, 4, num_segments, 128)
    assert segments["softmax_segm_max"].shape == segments["softmax_segm_expsum"].shape == (4, 4, num_segments)


def test_a_write_in_the_interpreter_gives_the_strides_of_its_tensors(library, monkeypatch):
    fused = torch.zeros(3, 8, 32)
    key, value = fused[:, 4:6], fused[:, 6:]
    pools = SimpleNamespace(key=torch.zeros(5, 16, 2, 32), value=torch.zeros(5, 16, 2, 32))
    slots = torch.tensor([3, -1, 40])
    for count in (3, 0):
        kernel_for(monkeypatch, on_gpu=False).write(make_spec(), key[:count], value[:count], pools, slots[:count])
    (call,) = library
    assert (call.grid, call.TILE_SIZE) == ((3, 1), 64)
    assert (call.key_stride, call.value_stride) == (256, 256)
    assert (call.block_stride, call.page_stride, call.head_stride) == (1024, 64, 32)
    assert (call.num_heads, call.head_size, call.block_size) == (2, 32, 16)
    assert (call.USE_HEAD_MAJOR_LAYOUT, call.FP8_KV_CACHE) == (False, False)


def test_a_write_on_a_gpu_takes_the_librarys_own_entry(library, monkeypatch):
    key = torch.zeros(3, 2, 32)
    pools = SimpleNamespace(key="keys", value="values")
    kernel_for(monkeypatch, on_gpu=True).write(make_spec(), key, key, pools, "slots")
    (call,) = library
    assert call.name == "triton_reshape_and_cache_flash"
    assert (call.key_cache, call.slot_mapping, call.kv_cache_dtype) == ("keys", "slots", "auto")
    assert call.k_scale.tolist() == call.v_scale.tolist() == [1.0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "bfloat16"}, "by its bits"),
        ({"kv_dtype": "int8"}, "kv_dtype int8"),
        ({"block_size": 24}, "multiple of 16"),
        ({"head_dim": 24}, "at least 32"),
        ({"value_dim": 16}, "and equal"),
        ({"alibi_slopes": (0.5,) * 4, "sinks": (0.0,) * 4}, "ALiBi with sinks"),
        ({"k_scale": 2.0}, "8-bit pools"),
    ],
)
def test_every_limit_has_its_reason_and_is_no_launch(paged, library, monkeypatch, options, reason):
    kernel = kernel_for(monkeypatch, on_gpu=False)
    assert reason in kernel.unsupported(make_spec(**options))
    with pytest.raises(ValueError, match="vllm-triton does not support"):
        kernel.plan(make_spec(**options), paged.case(make_spec(), *DECODE).batch)


def test_on_a_gpu_bfloat16_is_taken_and_float32_is_tf32(library, monkeypatch):
    kernel = kernel_for(monkeypatch, on_gpu=True)
    assert kernel.unsupported(make_spec(dtype="bfloat16")) is None
    assert kernel.arithmetic(make_spec())["tf32"]
    assert not kernel_for(monkeypatch, on_gpu=False).arithmetic(make_spec())["tf32"]


def test_a_process_that_has_compiled_triton_in_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    vllm_triton.library.cache_clear()
    with pytest.raises(RuntimeError, match="triton is imported already"):
        vllm_triton.library(True)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_the_installed_library_takes_what_was_recorded():
    """In a process of its own, since Triton is imported for the interpreter."""
    program = (
        "import inspect, json; from kvproof_impls.vllm_triton import library; real = library(True); print(json.dumps("
        "[list(inspect.signature(f).parameters) for f in (real.unified_attention, real.write, real.write_kernel.fn)]))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    recorded = [unified_attention, triton_reshape_and_cache_flash, reshape_and_cache_kernel_flash]
    assert json.loads(ended.stdout) == [list(inspect.signature(each).parameters) for each in recorded]
