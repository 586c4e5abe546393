"""G1: every output element and every LSE lies within the bound derived from the declared arithmetic and the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvproof_suites.kernel.attend import attend, require
from kvproof_suites.kernel.cases import CHUNKED, FULL, MIXED, SMOKE, SPECULATIVE, Case, by_tier, decode
from kvproof_suites.kernel.controls import draw_discriminating
from kvproof_suites.kernel.drawn import KINDS, draw, judge, place_drawn
from kvproof_suites.under_test import KernelUnderTest

EMPTY = (
    Case(((0, 1), (5, 1), (3, 6)), return_lse=True),
    Case(((0, 1), (5, 1), (3, 6)), return_lse=True, sinks=True),
    Case(((0, 1), (5, 1), (3, 6)), return_lse=True, sinks=True, softcap=5.0, alibi=True, window=2),
)
"""With a sink the LSE of a row without keys is the sink: the only logit that it has."""

LONG = tuple(Case(decode(1025, 700), dtype=dtype) for dtype in ("float16", "bfloat16", "float32"))


@pytest.mark.law("G1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", by_tier(SMOKE[:6], (*SMOKE[6:], *FULL, *SPECULATIVE, *LONG)))
def test_every_element_is_within_its_bound(
    kernel: KernelUnderTest, case: Case, kind: str, seed: int, report_ratio: Callable[[float], None]
) -> None:
    require(kernel, case)
    drawn = draw_discriminating(case, torch.Generator().manual_seed(seed), kind, kernel)
    pools = place_drawn(kernel, drawn)
    judge(drawn, kernel, attend(kernel, drawn.spec, drawn.pages, drawn.query, pools), report_ratio)


@pytest.mark.law("G1")
@pytest.mark.parametrize(
    "case",
    by_tier(
        (
            Case(MIXED, return_lse=True),
            Case(MIXED, dtype="float32", return_lse=True),
            Case(decode(17), num_kv_heads=2, group_size=3, return_lse=True),
        ),
        tuple(replace(case, return_lse=True) for case in (*SMOKE, Case(CHUNKED), *LONG)),
    ),
)
def test_the_log_sum_exp_is_within_its_bound(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    pools = place_drawn(kernel, drawn)
    judge(drawn, kernel, attend(kernel, drawn.spec, drawn.pages, drawn.query, pools), report_ratio)


@pytest.mark.law("G6")
@pytest.mark.parametrize("case", by_tier(EMPTY, ()))
def test_a_row_without_visible_keys_gives_zero_and_minus_infinity(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    require(kernel, case, "empty_rows")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    pools = place_drawn(kernel, drawn)
    out, lse = attend(kernel, drawn.spec, drawn.pages, drawn.query, pools)
    assert lse is not None
    judge(drawn, kernel, (out, lse), report_ratio)
    empty = [0, *range(2, 5)]  # the sequence without context, and the query rows that stand before position 0
    assert (out[empty] == 0).all(), f"rows {empty} see no key and must give 0, got {out[empty].abs().max()}"
    nothing = torch.tensor(drawn.spec.sinks or -torch.inf, device=lse.device)
    assert (lse[empty] == nothing).all(), f"rows {empty} see no key; their LSE must be {nothing}, got {lse[empty]}"
