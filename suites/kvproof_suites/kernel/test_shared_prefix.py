"""G21: told how many leading blocks all sequences share, a kernel gives what it gives without being told.

A kernel that does not take the hint has to be right as well. The hint may name fewer blocks than are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvproof_impls.contract import PagedBatch
from kvproof_suites.kernel import census
from kvproof_suites.kernel.attend import attend, place, require
from kvproof_suites.kernel.cases import A_TOKEN, MLA, Case, by_tier, decode
from kvproof_suites.kernel.decoding import judge as judge_needle
from kvproof_suites.kernel.drawn import draw, judge, place_drawn
from kvproof_suites.kernel.needle import bury
from kvproof_suites.kernel.pages import Pages, lay_out, step_tensors
from kvproof_suites.kernel.test_metamorphic import with_lse_if_declared
from kvproof_suites.under_test import KernelUnderTest

pytestmark = pytest.mark.law("G21")

CASES = (
    Case(decode(40, 33, 50), shared_blocks=2),
    Case(((40, 1), (37, 5), (64, 8)), shared_blocks=2, num_kv_heads=2),
    Case(((48, 16), (33, 1)), shared_blocks=2),
    Case(((40, 20), (33, 33)), shared_blocks=2),
    Case(decode(32, 20), shared_blocks=2),
    Case(decode(10, 17, 8), shared_blocks=2, block_size=3),
)
"""Tails of every length; chunks that begin where the prefix ends, and inside it; sequences without a tail."""

INSIDE = (Case(decode(27, 27), shared_blocks=2), Case(((27, 5), (27, 1)), shared_blocks=1, block_size=64))
"""Two that end inside the prefix, as samples of one prompt do: what follows in their last block nobody has written."""

FULL = (
    Case(decode(40), shared_blocks=2),
    Case(((600, 24), (530, 18), (520, 8)), shared_blocks=32),
    Case(((160, 1), (140, 4), (150, 20)), shared_blocks=8, group_size=7, head_dim=128, dtype="bfloat16"),
    Case(decode(300, 280), shared_blocks=1, block_size=256),
    Case(decode(40, 33, 50), shared_blocks=2, dtype="float32"),
    Case(decode(40, 37), shared_blocks=2, num_kv_heads=2, **A_TOKEN),
    Case(decode(40, 37), shared_blocks=2, **MLA),
)

OPTIONS = (
    Case(decode(40, 50, 80), shared_blocks=2, window=20),
    Case(((40, 1), (37, 5)), shared_blocks=2, sinks=True),
    Case(((40, 3), (50, 1)), shared_blocks=2, alibi=True, softcap=30.0),
)
OPTIONS_FULL = (
    Case(((60, 12), (50, 1)), shared_blocks=2, window=16, sinks=True),
    Case(((40, 20), (33, 33)), shared_blocks=2, window=7, alibi=True, sinks=True, softcap=20.0),
)


def told(pages: Pages, case: Case, fewer: int, device: str) -> PagedBatch:
    return step_tensors(pages, device, common_prefix_blocks=case.shared_blocks - fewer)


def search(kernel: KernelUnderTest, case: Case, fewer: int, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    needle = bury(lay_out(case, generator), case.spec, generator)
    pools = place(kernel, case.spec, needle.pages, needle.keys, needle.values, needle.scales)
    batch = told(needle.pages, case, fewer, kernel.device)
    judge_needle(needle, case.spec, attend(kernel, case.spec, needle.pages, needle.query, pools, batch)[0])


@pytest.mark.parametrize("case", by_tier((*CASES, OPTIONS[0]), (*FULL, OPTIONS[1], OPTIONS_FULL[0])))
def test_every_position_is_found_before_and_behind_the_end_of_the_prefix(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    search(kernel, case, 0, seed)


@pytest.mark.parametrize("case", by_tier((CASES[0], CASES[3]), (*CASES, *FULL)))
def test_every_position_is_found_where_fewer_blocks_are_named_than_shared(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    search(kernel, case, 1, seed)


@pytest.mark.parametrize("case", by_tier((*CASES, OPTIONS[0]), FULL))
def test_every_token_of_prefix_and_tail_counts_once(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    counted = census.take(lay_out(case, generator), case.spec, generator)
    query = torch.zeros(counted.pages.num_query_tokens, case.spec.num_q_heads, case.head_dim)
    pools = place(kernel, case.spec, counted.pages, counted.keys, counted.values, counted.scales)
    batch = told(counted.pages, case, 0, kernel.device)
    census.judge(counted, case.spec, attend(kernel, case.spec, counted.pages, query, pools, batch)[0])


@pytest.mark.parametrize("case", by_tier((*CASES, *OPTIONS), (*FULL, *OPTIONS_FULL)))
def test_output_and_lse_are_those_of_each_sequence_by_itself(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    case = with_lse_if_declared(kernel, replace(case, return_lse=True))
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    batch = told(drawn.pages, case, 0, kernel.device)
    output = attend(kernel, drawn.spec, drawn.pages, drawn.query, place_drawn(kernel, drawn), batch)
    judge(drawn, kernel, output, report_ratio)


@pytest.mark.parametrize("case", by_tier((CASES[0], INSIDE[0]), (*CASES, *INSIDE)))
def test_what_nobody_wrote_in_the_last_block_of_a_prefix_is_harmless(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    case = with_lse_if_declared(kernel, replace(case, return_lse=True))
    require(kernel, case, "dirty_tail")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    unowned = drawn.pages.unowned_slots()
    drawn.keys[unowned], drawn.values[unowned] = torch.nan, torch.nan
    batch = told(drawn.pages, case, 0, kernel.device)
    output = attend(kernel, drawn.spec, drawn.pages, drawn.query, place_drawn(kernel, drawn), batch)
    judge(drawn, kernel, output, report_ratio)
