"""G3, G2, E2, G17: what must not matter changes no bit: names of blocks, unowned bytes, padding, capacity."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kvproof_suites.kernel.attend import Output, attend, require
from kvproof_suites.kernel.cases import CHUNKED, FULL, MIXED, Case, by_tier, decode, prefill
from kvproof_suites.kernel.drawn import Drawn, draw, judge, place_drawn
from kvproof_suites.kernel.pages import NULL_BLOCK, step_tensors
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

CASES = (
    Case(MIXED, return_lse=True),
    Case(decode(1, 15, 16, 17, 33)),
    Case(prefill(17)),
    Case(CHUNKED, block_size=3),
    Case(decode(17), num_kv_heads=2, group_size=4, head_dim=80),
    Case(MIXED, dtype="float32"),
)
POISONS = {"1e4": 1e4, "nan": math.nan, "inf": math.inf}
PADDINGS = {"-1": -1, "null": NULL_BLOCK, "past the pool": 2**30}


def with_lse_if_declared(under_test: KernelUnderTest, case: Case) -> Case:
    return case if "lse" in under_test.kernel.features else replace(case, return_lse=False)


def run(under_test: KernelUnderTest, drawn: Drawn, **step: int) -> Output:
    pools = place_drawn(under_test, drawn)
    batch = step_tensors(drawn.pages, under_test.device, **step)
    return attend(under_test, drawn.spec, drawn.pages, drawn.query, pools, batch)


def require_same_bits(before: Output, after: Output, what: str) -> None:
    for name, first, second in zip(("out", "lse"), before, after, strict=True):
        if first is not None and second is not None and not torch.equal(first, second):
            rows = (~torch.isclose(first, second, rtol=0, atol=0)).flatten(1).any(1).nonzero().flatten().tolist()
            raise LawBroken(f"{what} changed {name} in query rows {rows[:8]} of {len(first)}", same_bits=len(first))


def compare(under_test: KernelUnderTest, feature: str, drawn: Drawn, before: Output, after: Output, what: str) -> None:
    """Bit for bit where the kernel declares ``feature``, else both runs by the error budget."""
    if feature in under_test.kernel.features:
        require_same_bits(before, after, what)
    else:
        judge(drawn, under_test, after, lambda ratio: None)


def relabelled(drawn: Drawn, generator: torch.Generator) -> Drawn:
    """The same sequences with every block, the null block included, under another id."""
    pages = drawn.pages
    new_id = torch.randperm(pages.num_blocks, generator=generator)
    tables = tuple(tuple(int(new_id[block]) for block in table) for table in pages.tables)
    moved = torch.empty(pages.num_slots, dtype=torch.long)
    offsets = torch.arange(pages.block_size)
    for block in range(pages.num_blocks):
        moved[int(new_id[block]) * pages.block_size + offsets] = block * pages.block_size + offsets
    return drawn.moved(replace(pages, tables=tables), moved)


@pytest.mark.law("G3")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_renaming_physical_blocks_changes_no_bit(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    drawn = draw(case, generator)
    after = relabelled(drawn, generator)
    compare(kernel, "relabel_bitwise", after, run(kernel, drawn), run(kernel, after), "renaming physical blocks")


@pytest.mark.law("G2")
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("where", ["keys", "values"])
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_unowned_bytes_change_no_bit(kernel: KernelUnderTest, case: Case, where: str, poison: str, seed: int) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    poisoned = replace(drawn, keys=drawn.keys.clone(), values=drawn.values.clone())
    clean_tails = poison != "1e4" and "dirty_tail" not in kernel.kernel.features
    spared = drawn.pages.tail_slots() if clean_tails else set()
    slots = [slot for slot in drawn.pages.unowned_slots() if slot not in spared]
    getattr(poisoned, where)[slots] = POISONS[poison]
    require_same_bits(run(kernel, drawn), run(kernel, poisoned), f"{poison} in the {where} of unowned slots")


@pytest.mark.law("E2")
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("case", by_tier(CASES[:4], FULL[:6]))
def test_table_entries_past_the_last_block_may_hold_anything(
    kernel: KernelUnderTest, case: Case, padding: str, seed: int
) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    dirty = replace(drawn, keys=drawn.keys.clone(), values=drawn.values.clone())
    null_slots = slice(NULL_BLOCK * case.block_size, (NULL_BLOCK + 1) * case.block_size)
    dirty.keys[null_slots], dirty.values[null_slots] = math.nan, math.nan
    before = run(kernel, drawn, padding=drawn.pages.tables[0][0])
    after = run(kernel, dirty, padding=PADDINGS[padding])
    require_same_bits(before, after, f"padding the table with {padding}")


@pytest.mark.law("G17")
@pytest.mark.parametrize("case", by_tier((*CASES[:2], Case(decode(600, 20))), FULL[:6]))
def test_table_width_and_pool_size_change_no_bit(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case)
    drawn = draw(case, torch.Generator().manual_seed(seed))
    like_slot_0 = torch.zeros(64 * case.block_size, dtype=torch.long)
    source = torch.cat([torch.arange(drawn.pages.num_slots), like_slot_0])
    larger = drawn.moved(replace(drawn.pages, num_blocks=drawn.pages.num_blocks + 64), source)
    before, after = run(kernel, drawn, extra_width=0), run(kernel, larger, extra_width=61)
    compare(kernel, "capacity_bitwise", larger, before, after, "a wider table and a larger pool")


@pytest.mark.law("G5")
@pytest.mark.parametrize("case", by_tier(CASES[:2], FULL[:6]))
def test_two_runs_give_the_same_bits(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    case = with_lse_if_declared(kernel, case)
    require(kernel, case, "run_bitwise")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    require_same_bits(run(kernel, drawn), run(kernel, drawn), "running again")
