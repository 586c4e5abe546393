"""Q4: writes into 8-bit pools saturate."""

from __future__ import annotations

import pytest
import torch

from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import Case, by_tier
from kvproof_suites.kernel.pages import by_slot, empty_pools, lay_out, step_tensors
from kvproof_suites.kernel.test_quantised import CASES as QUANTISED
from kvproof_suites.outcome import refuse
from kvproof_suites.under_test import KernelUnderTest

CASES = QUANTISED[:2]


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
