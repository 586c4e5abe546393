"""G19: when all weights are equal, every visible token is counted once, and nothing else is counted."""

from __future__ import annotations

import pytest
import torch

from kvproof_suites.kernel import census
from kvproof_suites.kernel.attend import attend, place, require
from kvproof_suites.kernel.cases import (
    FULL,
    LATENT,
    LATENT_FULL,
    OPTIONS,
    OPTIONS_FULL,
    SMOKE,
    SPECULATIVE,
    SPECULATIVE_FULL,
    Case,
    by_tier,
    decode,
)
from kvproof_suites.kernel.pages import lay_out
from kvproof_suites.under_test import KernelUnderTest

SPLITS = (
    Case(decode(127, 128, 129)),
    Case(decode(511, 512, 513), dtype="float32"),
    Case(((513, 3), (129, 1), (1, 1)), block_size=32),
)
"""Both sides of the lengths at which kernels cut a context in tiles and partitions, long and short in one batch."""

LONG = (
    *(Case(decode(1025, 1023)), Case(((1000, 70),)), Case(decode(4097), dtype="float32")),
    Case(((1025, 5), (700, 1), (513, 3)), group_size=4),
)


@pytest.mark.law("G19")
@pytest.mark.parametrize("case", by_tier((*SMOKE, *SPECULATIVE), (*FULL, *SPECULATIVE_FULL, *LONG)))
def test_every_visible_token_counts_once(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    count(kernel, case, seed)


@pytest.mark.law("G9")
@pytest.mark.parametrize("case", by_tier(SPLITS, (Case(decode(1023, 1024, 1025, 2049)), Case(decode(640, 65, 1)))))
def test_every_token_counts_once_wherever_a_context_is_cut(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    count(kernel, case, seed)


WINDOWS, WINDOWS_FULL = (
    [case for case in cases if case.window and not case.alibi and not case.sinks] for cases in (OPTIONS, OPTIONS_FULL)
)
"""Without what makes weights unequal, or takes a part of them."""


@pytest.mark.law("G11")
@pytest.mark.parametrize("case", by_tier(WINDOWS, WINDOWS_FULL))
def test_every_token_of_the_window_counts_once(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    count(kernel, case, seed)


@pytest.mark.law("G13")
@pytest.mark.parametrize("case", by_tier(LATENT, LATENT_FULL))
def test_every_visible_token_counts_once_under_latent_attention(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    count(kernel, case, seed)


def count(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    """Take the census of ``case``."""
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    counted = census.take(lay_out(case, generator), case.spec, generator)
    query = torch.zeros(counted.pages.num_query_tokens, case.spec.num_q_heads, case.head_dim)
    pools = place(kernel, case.spec, counted.pages, counted.keys, counted.values, counted.scales)
    out, _ = attend(kernel, case.spec, counted.pages, query, pools)
    census.judge(counted, case.spec, out)
