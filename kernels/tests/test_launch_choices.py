"""What a launch chooses is what the ahead-of-time gate compiles: no geometry that is taken leads outside of it."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kvproof_kernels.chips import CHIPS
from kvproof_kernels.tiles import CODES, Form, tile_for
from kvproof_kernels.variants import variants

HEAD_DIMS = (16, 64, 80, 128, 256, 512, 528, 576)
VALUE_DIMS = (16, 64, 96, 128, 256, 512)


@pytest.fixture(scope="module", params=["sm_90", "gfx942"])
def gated(request):
    """The chip's backend, and constants and options of every attention kernel that the gate compiles for it."""
    compiled = [variant for variant in variants(request.param) if variant.kernel.startswith("attention")]
    return CHIPS[request.param].target.backend, [(variant.constants, variant.options) for variant in compiled]


@pytest.mark.parametrize("kind", ["few", "many"])
@pytest.mark.parametrize("mla", [False, True], ids=["two pools", "values in keys"])
def test_every_pair_of_head_dim_and_value_dim_runs_what_was_compiled(gated, kind, mla):
    backend, compiled = gated
    for head_dim, value_dim, dtype, code in product(HEAD_DIMS, VALUE_DIMS, (torch.float16, torch.float32), CODES):
        if mla and value_dim > head_dim:
            continue
        for kv_dtype in (dtype, code):
            form = Form(head_dim, value_dim, dtype, kv_dtype, mla=mla, token_scales=kv_dtype == torch.int8)
            chosen = tile_for(kind, form, backend)
            assert (chosen.constants, chosen.compiler_options) in compiled, f"{form} runs {chosen}"
