"""Predicted occupancy against counts by hand, and against LLVM's own prediction for AMD."""

from __future__ import annotations

import re

import pytest
import torch
import triton

from kvproof_kernels.chips import CHIPS, occupancy
from kvproof_kernels.resources import read_amdgcn, source_of
from kvproof_kernels.tiles import Form
from kvproof_kernels.variants import attention_variant


@pytest.mark.parametrize(
    ("chip", "registers", "shared_bytes", "num_warps", "programs", "bound"),
    [
        ("sm_90", 32, 0, 4, 16, "warps"),  # 64 warps in all
        ("sm_90", 16, 0, 1, 32, "programs"),
        ("sm_90", 128, 0, 4, 4, "registers"),  # 128 · 32 = 4,096 a warp, 4 in each partition of 16,384
        ("sm_90", 129, 0, 4, 3, "registers"),  # 4,352 in granules of 256: 3 in each partition
        ("sm_90", 255, 0, 4, 2, "registers"),  # 8,192: 2 in each partition
        ("sm_90", 255, 0, 8, 1, "registers"),
        ("sm_90", 32, 232_448, 4, 1, "shared memory"),
        ("sm_90", 32, 76_800, 4, 3, "shared memory"),  # 3 · (76,800 + 1,024) = 233,472, all there is
        ("sm_90", 32, 76_801, 4, 2, "shared memory"),
        ("sm_80", 32, 54_912, 4, 3, "shared memory"),  # 167,936 / (54,912 + 1,024) = 3.002
        ("gfx942", 128, 0, 4, 4, "registers"),  # 512 registers a lane
        ("gfx942", 129, 0, 4, 3, "registers"),  # 136 in granules of 8
        ("gfx942", 256, 0, 8, 1, "registers"),
        ("gfx942", 16, 0, 4, 8, "warps"),  # 8 a SIMD
        ("gfx942", 16, 16_384, 4, 4, "shared memory"),
        ("gfx942", 16, 16_385, 4, 3, "shared memory"),
    ],
)
def test_occupancy_is_what_the_scarcest_resource_leaves_room_for(
    chip, registers, shared_bytes, num_warps, programs, bound
):
    held = occupancy(CHIPS[chip], registers=registers, shared_bytes=shared_bytes, num_warps=num_warps)
    assert (held.programs, held.warps, held.bound) == (programs, programs * num_warps, bound)


@pytest.mark.parametrize(("columns", "programs"), [(0, 16), (16, 16), (128, 4), (200, 2), (256, 2), (512, 1)])
def test_tensor_memory_is_given_in_powers_of_two(columns, programs):
    held = occupancy(CHIPS["sm_100"], registers=32, shared_bytes=0, num_warps=4, tensor_columns=columns)
    assert held.programs == programs


def test_a_program_may_have_all_shared_memory_but_what_the_system_takes():
    for chip in CHIPS.values():
        assert chip.shared_limit + chip.shared_reserved == chip.shared_bytes


def test_llvm_predicts_the_same_for_the_registers_of_amd(triton_cache):
    variant = attention_variant("few", Form(128, 128, torch.float16, torch.float16), "gfx942")
    compiled = triton.compile(source_of(variant), target=CHIPS["gfx942"].target, options=dict(variant.options))
    assembly = compiled.asm["amdgcn"]
    registers, _ = read_amdgcn(assembly)
    predicted = int(re.search(r"; Occupancy: (\d+)", assembly)[1])  # waves a SIMD
    assert occupancy(CHIPS["gfx942"], registers=registers, shared_bytes=0, num_warps=4).programs == predicted
