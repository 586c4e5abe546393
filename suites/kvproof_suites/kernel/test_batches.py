"""G4, G8, G14: a row depends on itself alone: not on its neighbours, on what the output held, or on other plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvproof_impls.contract import KVPools, Launch
from kvproof_suites.kernel.attend import Output, attend, require
from kvproof_suites.kernel.cases import CHUNKED, MIXED, Case, by_tier, decode, prefill
from kvproof_suites.kernel.drawn import Drawn, draw, judge, place_drawn
from kvproof_suites.kernel.guards import changed, guarded, guarded_pools
from kvproof_suites.kernel.pages import step_tensors
from kvproof_suites.kernel.test_metamorphic import require_same_bits, with_lse_if_declared
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

CASES = (
    Case(decode(17, 1, 40), return_lse=True),
    Case(MIXED, return_lse=True),
    Case(prefill(17, 1, 33)),
    Case(decode(5, 3, 9)),
)
STEP_TENSORS = ("block_tables", "context_lens", "query_start", "slot_mapping")
FULL = (
    Case(CHUNKED, block_size=3),
    Case(decode(5, 500, 1)),
    Case(((17, 17), (200, 1), (1, 1)), dtype="float32"),
    Case(((17, 17), (40, 1), (1, 1)), block_size=32, dtype="bfloat16"),
)


def only(drawn: Drawn, row: int) -> Drawn:
    """The same pool, with ``row`` alone in the batch."""
    pages, start = drawn.pages, sum(drawn.pages.query_lens[:row])
    alone = replace(
        pages,
        tables=pages.tables[row : row + 1],
        context_lens=pages.context_lens[row : row + 1],
        query_lens=pages.query_lens[row : row + 1],
    )
    return replace(drawn, pages=alone, query=drawn.query[start : start + pages.query_lens[row]])


def run(under_test: KernelUnderTest, drawn: Drawn) -> Output:
    pools = place_drawn(under_test, drawn)
    return attend(under_test, drawn.spec, drawn.pages, drawn.query, pools)


def rows_of(output: Output, drawn: Drawn, row: int) -> Output:
    start = sum(drawn.pages.query_lens[:row])
    cut = slice(start, start + drawn.pages.query_lens[row])
    out, lse = output
    return out[cut], None if lse is None else lse[cut]


@pytest.mark.law("G4")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_a_row_alone_gives_what_it_gives_in_a_batch(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    together = run(kernel, drawn)
    for row in range(len(case.seqs)):
        alone = only(drawn, row)
        judge(alone, kernel, rows_of(together, drawn, row), report_ratio)
        if "batch_bitwise" in kernel.kernel.features:
            require_same_bits(run(kernel, alone), rows_of(together, drawn, row), f"the company of sequence {row}")


@pytest.mark.law("G4")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_a_neighbour_full_of_nan_changes_no_other_row(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case, "run_bitwise")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    sick = replace(drawn, keys=drawn.keys.clone(), values=drawn.values.clone())
    slots = drawn.pages.slots(1)
    sick.keys[slots], sick.values[slots] = math.nan, math.nan
    before, after = run(kernel, drawn), run(kernel, sick)
    for row in (0, 2):
        require_same_bits(rows_of(before, drawn, row), rows_of(after, drawn, row), "a neighbour full of NaN")


@pytest.mark.law("G8")
@pytest.mark.parametrize("return_lse", [False, True], ids=["alone", "with the LSE"])
@pytest.mark.parametrize("case", by_tier(CASES[:2], FULL))
def test_every_row_of_a_given_output_is_written_and_none_beyond(
    kernel: KernelUnderTest, case: Case, return_lse: bool, seed: int, report_ratio: Callable[[float], None]
) -> None:
    case = replace(case, return_lse=return_lse)
    require(kernel, case, "out")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    launch, query, pools = planned(kernel, drawn)
    padded = torch.full((len(query) + 8, *query.shape[1:]), math.nan, dtype=query.dtype, device=kernel.device)
    given = padded[4:-4]
    returned = launch(query, pools, given)
    out, lse = returned if return_lse else (returned, None)
    if out.data_ptr() != given.data_ptr():
        raise LawBroken("the launch returned another tensor than the output that it was given")
    if not padded[-4:].isnan().all():
        raise LawBroken("rows past the last query row of the given output were written")
    if not padded[:4].isnan().all():
        raise LawBroken("rows before the first query row of the given output were written")
    judge(drawn, kernel, (given, lse), report_ratio)


@pytest.mark.law("G20")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_a_launch_changes_none_of_its_inputs(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    unowned = drawn.pages.unowned_slots()
    drawn.keys[unowned], drawn.values[unowned] = 7, 7  # so that clearing them shows
    pools, given = guarded_pools(place_drawn(kernel, drawn))
    batch = step_tensors(drawn.pages, kernel.device)
    steps = {name: guarded(getattr(batch, name)) for name in STEP_TENSORS}
    given |= steps | {"query": guarded(drawn.query.to(kernel.device))}
    between: dict[str, Any] = {name: part.tensor for name, part in steps.items()}
    batch = replace(batch, **between)
    kernel.kernel.plan(drawn.spec, batch)(given["query"].tensor, pools)
    if names := changed(given):
        raise LawBroken(f"attending changed {', '.join(names)}, or the memory before or past it")


@pytest.mark.law("G14")
@pytest.mark.parametrize("num_runs", [1, 4])
@pytest.mark.parametrize("case", by_tier(CASES[:2], FULL[:1]))
def test_other_plans_do_not_reach_a_launch(
    kernel: KernelUnderTest, case: Case, num_runs: int, seed: int, report_ratio: Callable[[float], None]
) -> None:
    """The latest plan runs first, so that whatever it left behind lies in the way of the earlier one."""
    case = replace(case, return_lse=False)
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    first, second = draw(case, generator), draw(replace(case, seqs=decode(70, 2)), generator)
    launches = [planned(kernel, drawn) for drawn in (first, second)]
    for _ in range(num_runs):
        for drawn, (launch, query, pools) in zip((second, first), reversed(launches), strict=True):
            judge(drawn, kernel, (launch(query, pools), None), report_ratio)


@pytest.mark.law("G14")
@pytest.mark.parametrize("case", by_tier(CASES[:2], FULL[:1]))
def test_a_plan_that_reuses_an_earlier_launch_has_its_own_contents(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    """The earlier launch has lent its buffers: only the later one is asked."""
    case = replace(case, return_lse=False)
    require(kernel, case, "graph")
    generator = torch.Generator().manual_seed(seed)
    earlier, _, _ = planned(kernel, draw(case, generator))
    drawn = draw(case, generator)
    launch, query, pools = planned(kernel, drawn, earlier)
    judge(drawn, kernel, (launch(query, pools), None), report_ratio)


@pytest.mark.law("G14")
@pytest.mark.parametrize(
    "case", by_tier((Case(decode(3, 700, 17)),), (Case(decode(5, 3, 9)), Case(decode(1, 1, 1300))))
)
def test_a_plan_that_reuses_an_earlier_launch_has_its_own_lengths(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    """Another sequence is the long one, so that another one's context is split; the table is as wide as before."""
    require(kernel, case, "graph")
    generator = torch.Generator().manual_seed(seed)
    earlier, _, _ = planned(kernel, draw(replace(case, seqs=decode(600, 3, 1)), generator), width=90)
    drawn = draw(case, generator)
    launch, query, pools = planned(kernel, drawn, earlier, width=90)
    judge(drawn, kernel, (launch(query, pools), None), report_ratio)


def planned(
    under_test: KernelUnderTest, drawn: Drawn, reuse: Launch | None = None, width: int | None = None
) -> tuple[Launch, torch.Tensor, KVPools]:
    """A launch for ``drawn``, and what to call it with; ``width``: of the block table."""
    pools = place_drawn(under_test, drawn)
    extra_width = 2 if width is None else width - max(map(len, drawn.pages.tables))
    batch = step_tensors(drawn.pages, under_test.device, extra_width=extra_width)
    launch = under_test.kernel.plan(drawn.spec, batch, reuse)
    return launch, drawn.query.to(under_test.device), pools
