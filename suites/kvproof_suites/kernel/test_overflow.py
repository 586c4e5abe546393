"""Q4: a value beyond the range of an 8-bit pool saturates, and a NaN stays in its own slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvproof_suites.kernel.cases import Case, by_tier
from kvproof_suites.kernel.test_cache_write import QUANTISED, prepare_write
from kvproof_suites.kernel.test_quantised_writes import A_TOKEN_EACH, A_TOKEN_EACH_FULL
from kvproof_suites.kernel.written_codes import magnitudes, require_near, row_scales, write
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest


@pytest.mark.law("Q4")
@pytest.mark.parametrize("rows", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", by_tier([case for case in QUANTISED if case.kv_scales != "token"], ()))
def test_a_write_beyond_the_range_saturates_and_a_nan_stays_in_its_slot(
    kernel: KernelUnderTest, case: Case, rows: str, seed: int
) -> None:
    """Of int8 NaN has no code: what becomes of it is open, but only of it."""
    case = replace(case, dtype=rows)
    generator, pages, pools = prepare_write(kernel, case, seed)
    scale = row_scales(case, pages, pools, generator).key[0]
    grid = magnitudes(case.kv_dtype or case.dtype)
    ladder = torch.tensor([0.5, 1.0, 1.01, 2.0, 1e3]) * grid[-1]
    sent = torch.zeros(pages.num_query_tokens, case.num_kv_heads, case.head_dim)
    beyond = (torch.cat([ladder, -ladder]) * scale[:, None]).clamp(*limits(rows))
    sent[0, :, : len(ladder) * 2] = beyond
    sent[1, 0, 0] = torch.nan
    written = write(kernel, case, pages, (sent, torch.zeros_like(sent)), pools)[0]
    reached = written.codes[0, :, : 2 * len(ladder)].float()
    if not (saturated(reached[:, 1:5], grid[-1]) and saturated(-reached[:, 6:], grid[-1], case.kv_dtype == "int8")):
        raise LawBroken(f"values beyond {grid[-1]:g} times their scale must saturate, got {reached.tolist()}")
    lost = written.codes[1, 0, 0].float()
    if case.kv_dtype != "int8" and not lost.isnan():
        raise LawBroken(f"a NaN must stay a NaN in its slot, got {lost:g}")
    others = written.codes.float()
    others[0, :, : 2 * len(ladder)], others[1, 0, 0] = 0, 0
    if not (others == 0).all():
        raise LawBroken(f"zeros beside a NaN were written, and {int((others != 0).sum())} of them are stored otherwise")


def limits(dtype: str) -> tuple[float, float]:
    return torch.finfo(getattr(torch, dtype)).min, torch.finfo(getattr(torch, dtype)).max


def saturated(codes: torch.Tensor, largest: torch.Tensor, one_more: bool = False) -> bool:
    """``one_more``: int8 has a code below -127, which not everyone uses."""
    return bool(((codes == largest) | (one_more & (codes == largest + 1))).all())


@pytest.mark.law("Q4")
@pytest.mark.parametrize("case", by_tier(A_TOKEN_EACH, A_TOKEN_EACH_FULL))
def test_a_row_with_a_nan_has_a_scale_of_nan_and_no_other_row_has(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    """Codes of 8 bits have no NaN, so that it is the scale that tells: whoever reads the row reads NaN."""
    generator, pages, pools = prepare_write(kernel, case, seed)
    parts = torch.randn(2, pages.num_query_tokens, case.num_kv_heads, case.head_dim, generator=generator)
    parts[:, 1, 0, 5] = torch.nan
    for written in write(kernel, case, pages, (parts[0], parts[1][..., : case.spec.value_dim_value]), pools):
        sick = torch.zeros_like(written.scales, dtype=torch.bool)
        sick[1, 0] = True
        if not torch.equal(written.scales.isnan(), sick):
            where = written.scales.isnan().nonzero().tolist()
            raise LawBroken(f"of row 1 key head 0 holds a NaN; the scales of (row, head) {where} are NaN")
        require_near(written, ~sick[..., None].expand_as(written.codes))
