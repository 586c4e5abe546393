"""What a launch chooses is what the ahead-of-time gate compiles: no geometry that is taken leads outside of it."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kvproof_kernels.chips import CHIPS
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.tiles import CODES, Form, tile_for
from kvproof_kernels.variants import is_supported, variants

HEAD_DIMS = (16, 64, 80, 128, 256, 512, 528, 576)
VALUE_DIMS = (16, 64, 96, 128, 256, 512)


@pytest.fixture(scope="module", params=["sm_90", "gfx942"])
def gated(request):
    """The chip, and constants and options of every attention kernel that the gate compiles for it."""
    compiled = [variant for variant in variants(request.param) if variant.kernel.startswith("attention")]
    return request.param, [(variant.constants, variant.options) for variant in compiled]


def is_taken(form, target):
    """By the geometry, and by the chip."""
    heads = (4, 2, form.head_dim, form.value_dim, 16, form.dtype, form.kv_dtype, 1.0)
    scales = "token" if form.token_scales else "tensor"
    geometry = Geometry(*heads, mla=form.mla, kv_scales=scales)
    return geometry.unsupported(torch.device("cpu")) is None and is_supported(form, target)


@pytest.mark.parametrize("kind", ["few", "many"])
@pytest.mark.parametrize("mla", [False, True], ids=["two pools", "values in keys"])
def test_every_pair_of_head_dim_and_value_dim_runs_what_was_compiled(gated, kind, mla):
    target, compiled = gated
    for head_dim, value_dim, dtype, code in product(HEAD_DIMS, VALUE_DIMS, (torch.float16, torch.float32), CODES):
        if mla and value_dim > head_dim:
            continue
        for kv_dtype in (dtype, code):
            form = Form(head_dim, value_dim, dtype, kv_dtype, mla=mla, token_scales=kv_dtype == torch.int8)
            if not is_taken(form, target):
                continue
            chosen = tile_for(kind, form, CHIPS[target].target.backend)
            assert (chosen.constants, chosen.compiler_options) in compiled, f"{form} runs {chosen}"
