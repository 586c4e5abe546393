"""F3, G12, G15: where bytes lie does not matter: high addresses, other block sizes, strided views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from kvproof_impls.contract import KVPools
from kvproof_suites.kernel.attend import attend, require
from kvproof_suites.kernel.cases import CHUNKED, MIXED, Case, by_tier, decode, prefill
from kvproof_suites.kernel.decoding import judge as judge_needle
from kvproof_suites.kernel.drawn import Drawn, draw, judge, place_drawn
from kvproof_suites.kernel.needle import Needle, bury
from kvproof_suites.kernel.pages import Pages, lay_out, step_tensors
from kvproof_suites.kernel.room import large_pools
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

STRIDED = (Case(MIXED), Case(decode(17), num_kv_heads=2))

REPAGED = (Case(MIXED), Case(MIXED, kv_dtype="int8", kv_scales="token", num_kv_heads=2))

PAST_INT32 = 2**31 + 2**20
"""Elements of one pool, so that the offset of its last blocks does not fit 32 bits."""


def in_the_highest_blocks(under_test: KernelUnderTest, needle: Needle, case: Case) -> tuple[Needle, KVPools]:
    """The needle's blocks moved to the end of large pools."""
    pages = needle.pages
    num_blocks = PAST_INT32 // (case.block_size * case.num_kv_heads * case.head_dim) + pages.num_blocks
    shift = num_blocks - pages.num_blocks
    pools = large_pools(under_test, case, num_blocks)
    for view, stored in ((pools.key, needle.keys), (pools.value, needle.values)):
        view[shift:].copy_(stored.view(pages.num_blocks, case.block_size, *stored.shape[1:]))
    tables = tuple(tuple(block + shift for block in table) for table in pages.tables)
    return replace(needle, pages=replace(pages, num_blocks=num_blocks, tables=tables)), pools


@pytest.mark.law("F3")
@pytest.mark.parametrize("case", by_tier((Case(decode(17)), Case(prefill(17))), (Case(decode(17), head_dim=256),)))
def test_blocks_past_32_bit_offsets_are_found(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    generator = torch.Generator().manual_seed(seed)
    needle = bury(lay_out(case, generator), case.spec, generator)
    moved, pools = in_the_highest_blocks(kernel, needle, case)
    out, _ = attend(kernel, case.spec, moved.pages, needle.query, pools, step_tensors(moved.pages, kernel.device))
    judge_needle(needle, case.spec, out)


@pytest.mark.law("G12")
@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 32, 64, 128, 256, 544])
@pytest.mark.parametrize("case", by_tier(REPAGED, (Case(CHUNKED, dtype="float32"), Case(prefill(65)))))
def test_the_same_tokens_in_other_blocks_give_the_same_answer(
    kernel: KernelUnderTest, case: Case, block_size: int, seed: int, report_ratio: Callable[[float], None]
) -> None:
    repaged = replace(case, block_size=block_size)
    require(kernel, repaged)
    generator = torch.Generator().manual_seed(seed)
    again = in_other_blocks(draw(case, generator), lay_out(repaged, generator), repaged)
    pools = place_drawn(kernel, again)
    judge(again, kernel, attend(kernel, again.spec, again.pages, again.query, pools), report_ratio)


def in_other_blocks(drawn: Drawn, pages: Pages, case: Case) -> Drawn:
    """The same sequences on ``pages`` of another block size."""
    source = torch.zeros(pages.num_slots, dtype=torch.long)
    for row in range(len(pages.tables)):
        source[pages.slots(row)] = torch.tensor(drawn.pages.slots(row))
    again, unowned = replace(drawn.moved(pages, source), spec=case.spec), pages.unowned_slots()
    again.keys[unowned], again.values[unowned] = 0, 0
    return again


def strided_pools(drawn: Drawn, kind: str, device: str) -> KVPools:
    """Views that are not packed: K and V interleaved in one allocation, or blocks with padding between them."""
    pages, spec = drawn.pages, drawn.spec
    shape = (pages.num_blocks, pages.block_size, spec.num_kv_heads, spec.head_dim)
    full = partial(torch.full, fill_value=torch.nan, dtype=drawn.keys.dtype, device=device)
    if kind == "interleaved":
        both = full((shape[0], 2, *shape[1:]))
        key, value = both[:, 0], both[:, 1]
    else:
        padded = (shape[0], shape[1] + 3, *shape[2:])
        key, value = (full(padded)[:, : shape[1]] for _ in range(2))
    key.copy_(drawn.keys.view(shape))
    value.copy_(drawn.values.view(shape))
    return KVPools(key, value)


@pytest.mark.law("G15")
@pytest.mark.parametrize("kind", ["interleaved", "padded blocks"])
@pytest.mark.parametrize(
    "case", by_tier((Case(MIXED), Case(decode(17), num_kv_heads=2)), (Case(CHUNKED, block_size=3),))
)
def test_strided_pools_give_the_same_bits_or_are_rejected(
    kernel: KernelUnderTest, case: Case, kind: str, seed: int
) -> None:
    require(kernel, case, "run_bitwise")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    packed = place_drawn(kernel, drawn)
    pools = strided_pools(drawn, kind, kernel.device)
    out, _ = attend(kernel, drawn.spec, drawn.pages, drawn.query, packed)
    try:
        strided, _ = attend(kernel, drawn.spec, drawn.pages, drawn.query, pools)
    except (ValueError, NotImplementedError):
        return  # rejected, and loudly
    if not torch.equal(out, strided):
        raise LawBroken(f"{kind} pools hold the same keys and values and give another output")


@pytest.mark.law("G15")
@pytest.mark.parametrize(
    "case", by_tier((Case(MIXED), Case(decode(17), num_kv_heads=2)), (Case(CHUNKED, block_size=3),))
)
def test_strided_queries_and_tables_give_the_same_bits_or_are_rejected(
    kernel: KernelUnderTest, case: Case, seed: int
) -> None:
    require(kernel, case, "run_bitwise")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    pools = place_drawn(kernel, drawn)
    batch = step_tensors(drawn.pages, kernel.device)
    out, _ = attend(kernel, drawn.spec, drawn.pages, drawn.query, pools, batch)
    fused = torch.full((drawn.query.shape[0], drawn.spec.num_q_heads + 2, drawn.spec.head_dim), torch.nan)
    fused = fused.to(kernel.device, drawn.query.dtype)
    fused[:, :-2] = drawn.query
    wide = torch.full((batch.num_seqs, batch.block_tables.shape[1] + 5), -1, dtype=torch.int32, device=kernel.device)
    wide[:, :-5] = batch.block_tables
    try:
        launch = kernel.kernel.plan(drawn.spec, replace(batch, block_tables=wide[:, :-5]))
        strided = launch(fused[:, :-2], pools)
    except (ValueError, NotImplementedError):
        return  # rejected, and loudly
    if not torch.equal(out, strided):
        raise LawBroken("a query sliced out of a fused projection, or a table out of a wider one, changes the output")
