"""What is compiled ahead of time is what a launch has compiled: types, and which arguments are multiples of 16."""

from __future__ import annotations

import pytest
import torch

from kvproof_kernels import attention, block_copy, cache_write, combine
from kvproof_kernels.aot_peers import caught, variant_of
from kvproof_kernels.block_copy import copy_blocks
from kvproof_kernels.cache_write import write_cache
from kvproof_kernels.variants import attention_variant, variants


@pytest.fixture
def launches(monkeypatch):
    """What is launched is listed, as Triton would specialise it for a GPU, and not run."""

    def launch(kernel, grid, configuration, arguments):
        kernel[grid](*arguments, **configuration.constants, **configuration.compiler_options)

    for module in (attention, block_copy, cache_write, combine):
        monkeypatch.setattr(module, "launch", launch)
    with caught() as launched:
        yield launched


def assert_specialized_alike(launched, ours):
    theirs = variant_of(launched, ours.kernel, ours.case, "sm_90", ())
    assert dict(theirs.types) == dict(ours.types)
    assert theirs.divisible == ours.divisible
    absent = {name for name, value in ours.constants.items() if value is None}
    assert {name for name, value in theirs.constants.items() if value is None} == absent


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attention(paged, launches, dtype):
    case = paged.draw([40, 70], head_dim=64, group_size=4, dtype=dtype)
    case.run()
    assert_specialized_alike(launches[0], attention_variant("few", case.geometry.form, "sm_90"))


def pool(*shape, dtype=torch.float16):
    return torch.zeros(shape, dtype=dtype)


def named(kernel, case):
    return next(v for v in variants("sm_90") if (v.kernel, v.case) == (kernel, case))


@pytest.mark.parametrize(
    ("kv_dtype", "scale", "case"),
    [
        (torch.float16, 1.0, "row dim 64, i16"),
        (torch.float8_e5m2, 0.5, "row dim 64, float16 to float8_e5m2, scales a tensor"),
        (torch.int8, torch.ones(2), "row dim 64, float16 to int8, scales a head"),
        (torch.int8, torch.ones(4, 16, 2), "row dim 64, float16 to int8, scales a token"),
    ],
)
def test_cache_write(launches, kv_dtype, scale, case):
    rows, slots = pool(3, 2, 64), torch.arange(3)
    pools = pool(4, 16, 2, 64, dtype=kv_dtype), pool(4, 16, 2, 64, dtype=kv_dtype)
    write_cache(rows, rows.clone(), *pools, slots, key_scale=scale, value_scale=scale)
    assert_specialized_alike(launches[0], named("cache_write", case))


@pytest.mark.parametrize("with_scales", [False, True])
def test_block_copy(launches, with_scales):
    scales = {"key_scale": torch.ones(4, 16, 2), "value_scale": torch.ones(4, 16, 2)} if with_scales else {}
    pools = pool(4, 16, 2, 64, dtype=torch.int8), pool(4, 16, 2, 64, dtype=torch.int8)
    copy_blocks(*pools, [(0, 1)], **scales)
    assert_specialized_alike(
        launches[0], named("block_copy", "row dim 64, i8" + (", scales a token" if with_scales else ""))
    )


def test_combine(launches):
    combine.merge(torch.zeros(2, 3, 4, 64), torch.zeros(2, 3, 4))
    assert_specialized_alike(launches[0], named("combine", "value dim 64, float32"))
