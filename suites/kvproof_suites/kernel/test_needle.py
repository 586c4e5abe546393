"""G18 and G10: when one key outweighs all others, the output is the value of exactly that token and head."""

from __future__ import annotations

import pytest
import torch

from kvproof_suites.churn import physical_order
from kvproof_suites.kernel.attend import attend, place, require
from kvproof_suites.kernel.cases import (
    CHUNKED,
    FULL,
    GEOMETRY,
    GEOMETRY_FULL,
    MIXED,
    OPTIONS,
    OPTIONS_FULL,
    SMOKE,
    SPECULATIVE,
    SPECULATIVE_FULL,
    Case,
    by_tier,
    decode,
    prefill,
)
from kvproof_suites.kernel.decoding import judge
from kvproof_suites.kernel.needle import Needle, bury
from kvproof_suites.kernel.pages import lay_out
from kvproof_suites.under_test import KernelUnderTest
from kvproof_traces import BlockTables


def search(under_test: KernelUnderTest, case: Case, needle: Needle) -> None:
    pools = place(under_test, case.spec, needle.pages, needle.keys, needle.values, needle.scales)
    out, _ = attend(under_test, case.spec, needle.pages, needle.query, pools)
    judge(needle, case.spec, out)


@pytest.mark.law("G18")
@pytest.mark.parametrize("case", by_tier((*SMOKE, *SPECULATIVE), (*FULL, *SPECULATIVE_FULL)))
def test_every_position_is_found(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    search(kernel, case, bury(lay_out(case, generator), case.spec, generator))


@pytest.mark.law("G18")
@pytest.mark.parametrize(
    "case",
    by_tier(
        (Case(prefill(17, 32)), Case(CHUNKED), SPECULATIVE[0]),
        (Case(prefill(130)), Case(((130, 64),), group_size=4), *SPECULATIVE_FULL[::4]),
    ),
)
def test_nothing_past_the_causal_limit_is_found(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    search(kernel, case, bury(lay_out(case, generator), case.spec, generator, twins=1))


@pytest.mark.law("G18")
@pytest.mark.parametrize(
    "case", by_tier((Case(MIXED, layout="churned"),), (Case(decode(65, 129), layout="churned", block_size=8),))
)
def test_every_position_is_found_in_a_pool_that_traffic_has_churned(
    kernel: KernelUnderTest, case: Case, churned_tables: BlockTables, seed: int
) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator, physical_order(churned_tables))
    search(kernel, case, bury(pages, case.spec, generator))


@pytest.mark.law("G11")
@pytest.mark.parametrize(
    "case",
    by_tier([case for case in OPTIONS if case.window], [case for case in OPTIONS_FULL if case.window]),
)
def test_nothing_before_the_window_is_found(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    search(kernel, case, bury(lay_out(case, generator), case.spec, generator, twins=case.window or 0))


@pytest.mark.law("G13")
@pytest.mark.parametrize("case", by_tier(OPTIONS, OPTIONS_FULL))
def test_every_position_is_found_under_every_option(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    search(kernel, case, bury(lay_out(case, generator), case.spec, generator))


@pytest.mark.law("G10")
@pytest.mark.parametrize("case", by_tier(GEOMETRY, GEOMETRY_FULL))
def test_every_query_head_finds_its_own_key_head(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    search(kernel, case, bury(lay_out(case, generator), case.spec, generator))
