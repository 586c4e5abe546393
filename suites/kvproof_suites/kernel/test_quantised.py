"""Q1: 8-bit pools mean codes times scales, each once. G2, G4, G15, G20: scales are memory as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvproof_suites.kernel import census
from kvproof_suites.kernel.attend import Output, attend, place, require
from kvproof_suites.kernel.cases import (
    A_HEAD,
    A_TOKEN,
    CHUNKED,
    DEEPSEEK,
    MIXED,
    MLA,
    SCALES,
    Case,
    by_tier,
    decode,
    prefill,
)
from kvproof_suites.kernel.decoding import judge as judge_needle
from kvproof_suites.kernel.drawn import Drawn, draw, judge, place_drawn
from kvproof_suites.kernel.needle import bury
from kvproof_suites.kernel.pages import lay_out
from kvproof_suites.kernel.scales import Scales, with_strided_scales
from kvproof_suites.kernel.test_metamorphic import require_same_bits
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

CASES = (
    *(Case(MIXED, kv_dtype=kv_dtype, **SCALES) for kv_dtype in ("float8_e4m3fn", "float8_e5m2")),
    Case(MIXED, kv_dtype="float8_e4m3fn", **A_HEAD),
    Case(MIXED, num_kv_heads=2, **A_TOKEN),
    Case(decode(17, 33), **A_TOKEN, **MLA),
)
FULL = (
    Case(prefill(17, 33), kv_dtype="float8_e4m3fn", num_kv_heads=2, **SCALES),
    Case(CHUNKED, kv_dtype="float8_e4m3fn", dtype="bfloat16", block_size=3, **SCALES),
    Case(decode(129), kv_dtype="float8_e5m2", head_dim=128, **SCALES),
    Case(decode(129, 16, 1), num_kv_heads=3, head_dim=128, **A_TOKEN),
    Case(CHUNKED, num_kv_heads=2, block_size=3, **A_TOKEN),
    Case(((257, 3), (129, 1), (1, 1)), num_kv_heads=2, window=20, **A_TOKEN),
    Case(MIXED, kv_dtype="int8", **SCALES),
    *(
        Case(seqs, dtype=dtype, kv_dtype=kv_dtype, **A_HEAD)
        for seqs in (MIXED, decode(17, 33))
        for dtype in ("float16", "bfloat16", "float32")
        for kv_dtype in ("float8_e4m3fn", "float8_e5m2", "int8")
    ),
    *(Case(MIXED, dtype=dtype, num_kv_heads=2, **A_TOKEN) for dtype in ("bfloat16", "float32")),
    *(
        Case(MIXED, dtype=dtype, kv_dtype=kv_dtype, **SCALES)
        for dtype in ("bfloat16", "float32")
        for kv_dtype in ("float8_e4m3fn", "float8_e5m2")
    ),
    Case(((40, 1), (33, 5)), dtype="bfloat16", kv_dtype="float8_e4m3fn", k_scale=0.25, v_scale=0.25, **DEEPSEEK),
    Case(((40, 1), (33, 5)), dtype="bfloat16", **A_TOKEN, **DEEPSEEK),
)
"""What serving engines store beside what they compute in, each kind of scale in decode and in a mixed batch."""

OWN_SCALES = tuple(case for case in CASES if case.kv_scales == "token")
POISONS = {"1e4": 1e4, "nan": math.nan, "inf": math.inf, "zero": 0.0}


@pytest.mark.law("Q1")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_every_position_of_an_8_bit_pool_is_found(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    needle = bury(lay_out(case, generator), case.spec, generator)
    pools = place(kernel, case.spec, needle.pages, needle.keys, needle.values, needle.scales)
    out, _ = attend(kernel, case.spec, needle.pages, needle.query, pools)
    judge_needle(needle, case.spec, out)


@pytest.mark.law("Q1")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_every_token_of_an_8_bit_pool_counts_once(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    counted = census.take(lay_out(case, generator), case.spec, generator)
    query = torch.zeros(counted.pages.num_query_tokens, case.spec.num_q_heads, case.head_dim)
    pools = place(kernel, case.spec, counted.pages, counted.keys, counted.values, counted.scales)
    out, _ = attend(kernel, case.spec, counted.pages, query, pools)
    census.judge(counted, case.spec, out)


@pytest.mark.law("Q1")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_attention_over_codes_is_attention_over_what_they_mean(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    judge(drawn, kernel, run(kernel, drawn), report_ratio)


def run(under_test: KernelUnderTest, drawn: Drawn) -> Output:
    return attend(under_test, drawn.spec, drawn.pages, drawn.query, place_drawn(under_test, drawn))


def with_scale(drawn: Drawn, slots: list[int], scale: float) -> Drawn:
    """The same codes, and another scale in ``slots``."""
    assert drawn.scales is not None
    key = drawn.scales.key.clone()
    value = key if drawn.spec.mla else drawn.scales.value.clone()
    key[slots], value[slots] = scale, scale
    return replace(drawn, scales=Scales(key, value))


@pytest.mark.law("G2")
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("case", by_tier(OWN_SCALES, ()))
def test_scales_that_nobody_owns_change_no_bit(kernel: KernelUnderTest, case: Case, poison: str, seed: int) -> None:
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    clean_tails = not math.isfinite(POISONS[poison]) and "dirty_tail" not in kernel.kernel.features
    spared = drawn.pages.tail_slots() if clean_tails else set()
    slots = [slot for slot in drawn.pages.unowned_slots() if slot not in spared]
    poisoned = with_scale(drawn, slots, POISONS[poison])
    require_same_bits(run(kernel, drawn), run(kernel, poisoned), f"{poison} in the scales of unowned slots")


@pytest.mark.law("G4")
@pytest.mark.parametrize("case", by_tier(OWN_SCALES, ()))
def test_a_neighbour_whose_scales_are_nan_changes_no_other_row(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case, "run_bitwise")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    sick = with_scale(drawn, drawn.pages.slots(1), math.nan)
    start = drawn.pages.query_lens[0]
    others = [*range(start), *range(start + drawn.pages.query_lens[1], drawn.pages.num_query_tokens)]
    before, after = (run(kernel, each)[0][others] for each in (drawn, sick))
    require_same_bits((before, None), (after, None), "a neighbour whose scales are NaN")


@pytest.mark.law("G20")
@pytest.mark.parametrize("case", by_tier(CASES[2:], ()))
def test_a_launch_changes_no_scale(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    pools = place_drawn(kernel, drawn)
    assert pools.key_scale is not None
    assert pools.value_scale is not None
    before = (pools.key_scale.clone(), pools.value_scale.clone())
    attend(kernel, drawn.spec, drawn.pages, drawn.query, pools)
    if not (torch.equal(before[0], pools.key_scale) and torch.equal(before[1], pools.value_scale)):
        raise LawBroken("attending changed the scales")


@pytest.mark.law("G15")
@pytest.mark.parametrize("case", by_tier(OWN_SCALES, ()))
def test_scales_between_others_give_the_same_bits_or_are_rejected(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    require(kernel, case, "run_bitwise")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    packed = place_drawn(kernel, drawn)
    strided, _ = with_strided_scales(packed)
    out, _ = attend(kernel, drawn.spec, drawn.pages, drawn.query, packed)
    try:
        again, _ = attend(kernel, drawn.spec, drawn.pages, drawn.query, strided)
    except (ValueError, NotImplementedError):
        return  # rejected, and loudly
    if not torch.equal(out, again):
        raise LawBroken("scales that are not packed are the same scales and give another output")
