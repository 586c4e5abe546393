"""G19: when all weights are equal, every visible token is counted once, and nothing else is counted."""

from __future__ import annotations

import pytest
import torch

from kvproof_suites.conftest import KernelUnderTest
from kvproof_suites.kernel import census
from kvproof_suites.kernel.attend import attend, place, require
from kvproof_suites.kernel.cases import Case, by_tier, decode
from kvproof_suites.kernel.pages import lay_out

LONG = (Case(decode(1025, 1023)), Case(((1000, 70),)), Case(decode(4097), dtype="float32"))


@pytest.mark.law("G19")
@pytest.mark.parametrize("case", [*by_tier(), *by_tier((), LONG)])
def test_every_visible_token_counts_once(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    counted = census.take(lay_out(case, generator), case.spec, generator)
    pages = counted.pages
    keys = torch.randn(pages.num_slots, case.num_kv_heads, case.head_dim, generator=generator)
    query = torch.zeros(pages.num_query_tokens, case.spec.num_q_heads, case.head_dim)
    out, _ = attend(kernel, case.spec, pages, query, place(kernel, case.spec, pages, keys, counted.values))
    census.judge(counted, case.spec, out)
