"""Interpreted and compiled forms live side by side in one process, whoever asks for which."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from kvproof_kernels import steps
from kvproof_kernels.attention import paged_attention, paged_attention_kernel
from kvproof_kernels.cache_write import cache_write_kernel
from kvproof_kernels.interpreter import is_kernel, run_interpreted
from kvproof_kernels.variants import attention_resources


@triton.jit
def twice(x):
    return x + x


@triton.jit
def row_figures(source, target, WIDTH: tl.constexpr):
    tile = tl.load(source + tl.program_id(0) * WIDTH + tl.arange(0, WIDTH))
    tl.store(target + tl.program_id(0) * 2, twice(tl.max(tile, 0)))
    tl.store(target + tl.program_id(0) * 2 + 1, tl.sum(tile, 0))


def test_a_kernel_may_call_pieces_and_reductions():
    source = torch.arange(32.0).view(4, 8)
    target = torch.zeros(4, 2)
    run_interpreted(row_figures, (4,), source, target, WIDTH=8)
    assert torch.equal(target, torch.stack([2 * source.amax(1), source.sum(1)], 1))


def test_a_launch_leaves_triton_as_it_was(paged):
    before = {name: vars(tl)[name] for name in ("max", "sum", "load", "store", "dot", "reduce", "range")}
    case = paged.draw([5])
    case.run()
    assert {name: vars(tl)[name] for name in before} == before
    assert isinstance(paged_attention_kernel, JITFunction)
    assert isinstance(steps.online_softmax, JITFunction)


def test_a_failing_launch_leaves_triton_as_it_was_too():
    before = (tl.max, tl.sum, tl.load)
    with pytest.raises(Exception, match="missing"):
        run_interpreted(row_figures, (1,), torch.zeros(8), WIDTH=8)
    assert (tl.max, tl.sum, tl.load) == before


def test_kernels_compile_after_they_were_interpreted(paged, triton_cache):
    case = paged.draw([5])
    case.run()
    assert attention_resources("few", case.geometry.form, "sm_90").registers > 0


def test_both_forms_count_as_kernels():
    assert is_kernel(cache_write_kernel)
    assert not is_kernel(paged_attention)


SCRIPT = """
import sys, torch
from kvproof_kernels.attention import paged_attention_kernel
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.plan import PagedAttention
from kvproof_kernels.variants import attention_variant
cases, results = torch.load(sys.argv[1], weights_only=False), sys.argv[2]
torch.save([PagedAttention(*plan)(*tensors) for plan, tensors in cases], results)
try:
    attention_variant("few", cases[0][0][0].form, "sm_90")
except ValueError as error:
    print(type(paged_attention_kernel).__name__, error)
"""


def test_the_users_own_switch_gives_the_same_bits(paged, tmp_path):
    drawn = [paged.draw([5, 140], dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)]
    cases = [
        ((case.geometry, case.block_tables, [5, 140], [1, 1]), (case.query, case.key_pool, case.value_pool))
        for case in drawn
    ]
    torch.save(cases, tmp_path / "cases.pt")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "cases.pt"), str(tmp_path / "results.pt")],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("InterpretedFunction TRITON_INTERPRET is set")
    for case, (out, lse) in zip(drawn, torch.load(tmp_path / "results.pt"), strict=True):
        here = case.run()
        assert torch.equal(here[0], out)
        assert torch.equal(here[1], lse)
