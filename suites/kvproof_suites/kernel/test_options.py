"""G13, G10, G14: an option changes the answer as the oracle says, for odd shapes too, and ends with its plan.

The needle can't see an option that is ignored: whatever cap, bias, sink or scale does, the loudest key stays the
loudest. The error budget can, on output and LSE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvproof_suites.kernel.attend import attend, require
from kvproof_suites.kernel.cases import CHUNKED, MIXED, OPTIONS, OPTIONS_FULL, Case, by_tier, decode
from kvproof_suites.kernel.drawn import draw, judge, place_drawn
from kvproof_suites.kernel.pages import step_tensors
from kvproof_suites.kernel.test_metamorphic import with_lse_if_declared
from kvproof_suites.under_test import KernelUnderTest

# A cap of 1 is below the scores, so that a mask put on before it (tanh of minus infinity) shows; one of 0.01 is so far
# below that a tanh made of two exponentials overflows.
BY_ORACLE = tuple(
    replace(case, return_lse=True)
    for case in (
        *OPTIONS,
        *(Case(CHUNKED, softcap=cap) for cap in (1.0, 0.01)),
        Case(MIXED, num_kv_heads=2, sinks=True, alibi=True),
    )
)
BY_ORACLE_FULL = tuple(replace(case, return_lse=True) for case in OPTIONS_FULL)

CUT = (
    Case(decode(600, 20), return_lse=True),
    Case(((600, 3), (20, 1)), sinks=True, return_lse=True),
    Case(decode(8000), head_dim=256, group_size=8, return_lse=True),
)
CUT_FULL = (
    Case(decode(700, 300), window=515, return_lse=True),
    Case(((520, 8), (20, 1)), num_kv_heads=2, softcap=30.0, alibi=True, sinks=True, return_lse=True),
    Case(decode(1030), dtype="bfloat16", sinks=True, return_lse=True),
)
"""Long beside the others, so that a kernel that splits contexts does: what counts once has to count once still.

The last of CUT is in so many parts that merging them may take several steps."""

ODD_SHAPES = (
    Case(MIXED, head_dim=80),
    Case(decode(17), num_kv_heads=3),
    Case(decode(17), num_kv_heads=2, group_size=24),
)
ODD_SHAPES_FULL = (
    *(Case(MIXED, head_dim=head_dim) for head_dim in (72, 96, 112, 136)),
    *(Case(decode(17), num_kv_heads=heads, group_size=group) for heads, group in ((6, 16), (1, 71), (2, 12))),
)


def compare_with_oracle(
    under_test: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    case = with_lse_if_declared(under_test, case)
    require(under_test, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    pools = place_drawn(under_test, drawn)
    judge(drawn, under_test, attend(under_test, drawn.spec, drawn.pages, drawn.query, pools), report_ratio)


@pytest.mark.law("G13")
@pytest.mark.parametrize("case", by_tier(BY_ORACLE, BY_ORACLE_FULL))
def test_an_option_changes_the_answer_as_the_oracle_says(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    compare_with_oracle(kernel, case, seed, report_ratio)


@pytest.mark.law("G10")
@pytest.mark.parametrize("case", by_tier(ODD_SHAPES, ODD_SHAPES_FULL))
def test_every_dim_and_every_head_counts(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    compare_with_oracle(kernel, case, seed, report_ratio)


@pytest.mark.law("G9")
@pytest.mark.parametrize("case", by_tier(CUT, CUT_FULL))
def test_options_and_lse_hold_where_a_long_context_is_cut(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    compare_with_oracle(kernel, case, seed, report_ratio)


@pytest.mark.law("G14")
@pytest.mark.parametrize(
    "case", by_tier((Case(MIXED, window=5), Case(MIXED, softcap=1.0)), (Case(CHUNKED, alibi=True),))
)
def test_an_option_ends_with_its_plan(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    plain = replace(drawn, spec=replace(case, window=None, softcap=None, alibi=False).spec)
    pools = place_drawn(kernel, drawn)
    batch, query = step_tensors(drawn.pages, kernel.device), drawn.query.to(kernel.device)
    kernel.kernel.plan(drawn.spec, batch)(query, pools)
    judge(plain, kernel, (kernel.kernel.plan(plain.spec, batch)(query, pools), None), report_ratio)
