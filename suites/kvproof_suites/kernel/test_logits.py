"""G7: softmax is shift invariant, so that logits of any size give an answer; no finite sentinel is visible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvproof_suites.kernel.attend import attend, require
from kvproof_suites.kernel.cases import CHUNKED, MIXED, Case, by_tier, decode
from kvproof_suites.kernel.drawn import draw, judge, place_drawn
from kvproof_suites.under_test import KernelUnderTest

SHIFTS = (-6e4, -1e3, 1e4)
"""Added to every logit: below the sentinels -1e4 and -5e4 that kernels have been seen to use, and far above."""

PAST_A_TILE = tuple(Case(((34, 2),), group_size=1, window=2, dtype=dtype) for dtype in ("float16", "float32"))
"""The window of the last query begins where a tile of 16 or 32 keys, which its neighbour needs, has ended: a row that
has seen no key yet has no maximum, not even 0."""


@pytest.mark.law("G7")
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(
    "case",
    by_tier(
        (*(Case(MIXED, dtype=dtype) for dtype in ("float16", "float32")), *PAST_A_TILE),
        (Case(CHUNKED, dtype="bfloat16"), Case(decode(15, 16, 17, 129)), Case(MIXED, head_dim=128)),
    ),
)
def test_a_constant_added_to_every_logit_changes_nothing(
    kernel: KernelUnderTest, case: Case, shift: float, seed: int, report_ratio: Callable[[float], None]
) -> None:
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    # One channel is the same in every key, so that it adds the same to every score of a query.
    drawn.keys[..., 0] = 16
    drawn.query[..., 0] = shift / (16 * drawn.spec.scale_value)
    pools = place_drawn(kernel, drawn)
    judge(drawn, kernel, attend(kernel, drawn.spec, drawn.pages, drawn.query, pools), report_ratio)
