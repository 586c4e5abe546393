"""A merge without the empty case fails on empty parts; no launch of attention has a row of nothing but empty parts."""

from __future__ import annotations

import sys

import pytest
import torch

from kvproof_kernels.combine import merge
from selftest.wrong.mutated_triton import load_mutant

NOTHING = torch.zeros(2, 1, 1, 16), torch.full((2, 1, 1), -torch.inf)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("shift", 'tl.where(new_maximum == float("-inf"), 0.0, new_maximum)', "new_maximum"),
        ("divisor", "tl.where(empty, 1.0, normalizer)", "normalizer"),
    ],
)
def test_a_merge_without_the_empty_case_gives_nan(name, old, new):
    load_mutant(f"merge_without_{name}", "combine", old, new)
    mutated = sys.modules[f"selftest.wrong.mutated.merge_without_{name}.combine"].merge
    assert mutated(*NOTHING)[0].isnan().any()
    assert merge(*NOTHING)[0].count_nonzero() == 0
