"""Q1 and Q4: 8-bit pools are attended to as what their codes mean, each scale once, and writes saturate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvproof_suites.kernel.attend import attend, place, require
from kvproof_suites.kernel.cases import CHUNKED, MIXED, Case, by_tier, decode, prefill
from kvproof_suites.kernel.decoding import judge as judge_needle
from kvproof_suites.kernel.drawn import draw, judge
from kvproof_suites.kernel.needle import bury
from kvproof_suites.kernel.pages import by_slot, empty_pools, lay_out, step_tensors
from kvproof_suites.outcome import refuse
from kvproof_suites.under_test import KernelUnderTest

# Far from 1 and from one another, and powers of two: a scale that is lost, doubled or swapped shows at once.
SCALES: dict[str, Any] = {"k_scale": 0.25, "v_scale": 0.5}
CASES = tuple(Case(MIXED, kv_dtype=kv_dtype, **SCALES) for kv_dtype in ("float8_e4m3fn", "float8_e5m2"))
FULL = (
    Case(prefill(17, 33), kv_dtype="float8_e4m3fn", num_kv_heads=2, **SCALES),
    Case(CHUNKED, kv_dtype="float8_e4m3fn", dtype="bfloat16", block_size=3, **SCALES),
    Case(decode(129), kv_dtype="float8_e5m2", head_dim=128, **SCALES),
)


@pytest.mark.law("Q1")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_every_position_of_an_8_bit_pool_is_found(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    needle = bury(lay_out(case, generator), case.spec, generator)
    pools = place(kernel, case.spec, needle.pages, needle.keys, needle.values)
    out, _ = attend(kernel, case.spec, needle.pages, needle.query, pools)
    judge_needle(needle, case.spec, out)


@pytest.mark.law("Q1")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_attention_over_codes_is_attention_over_what_they_mean(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    pools = place(kernel, drawn.spec, drawn.pages, drawn.keys, drawn.values)
    judge(drawn, kernel, attend(kernel, drawn.spec, drawn.pages, drawn.query, pools), report_ratio)


@pytest.mark.law("Q4")
@pytest.mark.parametrize("case", by_tier(CASES, ()))
def test_a_write_beyond_the_range_saturates_and_a_nan_stays_in_its_slot(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    require(kernel, case)
    if not hasattr(kernel.kernel, "write"):
        refuse("has no write")
    pages = lay_out(case, torch.Generator().manual_seed(seed))
    largest = torch.finfo(getattr(torch, case.kv_dtype or case.dtype)).max
    slots = step_tensors(pages, kernel.device).slot_mapping
    rows = torch.zeros(len(slots), case.num_kv_heads, case.head_dim, dtype=torch.float32)
    ladder = torch.tensor([0.5, 0.99, 1.0, 1.01, 2.0, 1e3])
    rows[0, 0, : len(ladder)] = ladder * largest * case.k_scale
    rows[0, 0, len(ladder) : 2 * len(ladder)] = -ladder * largest * case.k_scale
    rows[1, 0, 0] = torch.nan
    pools = empty_pools(pages, case.spec, kernel.kernel, kernel.device)
    kernel.kernel.write(case.spec, rows.to(kernel.device), rows.to(kernel.device), pools, slots)
    stored = by_slot(pools.key)[slots].float().cpu()
    reached = stored[0, 0, : 2 * len(ladder)]
    assert reached.abs().max() == largest, f"|value| beyond {largest} must saturate, got {reached.tolist()}"
    assert (reached[3:6] == largest).all(), f"values beyond {largest} must saturate, got {reached.tolist()}"
    assert stored[1, 0, 0].isnan(), f"a NaN must stay a NaN in its slot, got {stored[1, 0, 0]}"
    assert int(stored.isnan().sum()) == 1, f"one NaN was written, {int(stored.isnan().sum())} are stored"
