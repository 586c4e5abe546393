"""G15, F3: a cache write goes through the strides of the pool, at any address."""

from __future__ import annotations

import pytest
import torch

from kvproof_impls.contract import KVPools
from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import MIXED, Case, by_tier, decode
from kvproof_suites.kernel.pages import lay_out, step_tensors
from kvproof_suites.kernel.room import large_pools
from kvproof_suites.kernel.test_cache_write import bits, require_writer
from kvproof_suites.kernel.test_layouts import PAST_INT32
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest

CASES = (Case(MIXED), Case(decode(17, 1), num_kv_heads=2, block_size=3))


def rows(under_test: KernelUnderTest, case: Case, count: int, seed: int) -> list[torch.Tensor]:
    """K and V, [count, num_kv_heads, head_dim]."""
    drawn = torch.randn(2, count, case.num_kv_heads, case.head_dim, generator=torch.Generator().manual_seed(seed))
    return list(drawn.to(under_test.device, getattr(torch, case.dtype)))


@pytest.mark.law("G15")
@pytest.mark.parametrize("kind", ["interleaved", "padded blocks"])
@pytest.mark.parametrize("case", by_tier(CASES, ()))
def test_a_write_into_strided_pools_changes_its_slots_alone_or_is_rejected(
    kernel: KernelUnderTest, case: Case, kind: str, seed: int
) -> None:
    require(kernel, case)
    require_writer(kernel, "write")
    pages = lay_out(case, torch.Generator().manual_seed(seed))
    shape = (pages.num_blocks, 2, case.block_size + 3, case.num_kv_heads, case.head_dim)
    stored = torch.zeros(shape, dtype=getattr(torch, case.dtype), device=kernel.device)
    if kind == "interleaved":
        stored = stored[:, :, : case.block_size].contiguous()
    pools = KVPools(stored[:, 0, : case.block_size], stored[:, 1, : case.block_size])
    slots = step_tensors(pages, kernel.device).slot_mapping
    key, value = rows(kernel, case, len(slots), seed)
    try:
        kernel.kernel.write(case.spec, key, value, pools, slots)
    except (ValueError, NotImplementedError):
        return  # rejected, and loudly
    want = torch.zeros_like(stored)
    blocks, offsets = slots // case.block_size, slots % case.block_size
    want[blocks, 0, offsets], want[blocks, 1, offsets] = key, value
    if changed := int((bits(want) != bits(stored)).any(-1).sum()):
        raise LawBroken(f"{changed} rows of {kind} pools are not what writing {len(slots)} slots makes of them")


@pytest.mark.law("F3")
@pytest.mark.parametrize("case", by_tier((Case(decode(17, 1)),), (Case(decode(17), head_dim=256),)))
def test_a_write_past_32_bit_offsets_lands_in_its_slots(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    require_writer(kernel, "write")
    per_slot = case.num_kv_heads * case.head_dim
    num_blocks = PAST_INT32 // (per_slot * case.block_size)
    pools = large_pools(kernel, case, num_blocks)
    slots = torch.tensor([num_blocks * case.block_size - 1, 2**31 // per_slot + 1], device=kernel.device)
    sent = rows(kernel, case, len(slots), seed)
    kernel.kernel.write(case.spec, *sent, pools, slots)
    for name, view, row in (("key", pools.key, sent[0]), ("value", pools.value, sent[1])):
        if not torch.equal(view[slots // case.block_size, slots % case.block_size], row):
            raise LawBroken(
                f"slots {slots.tolist()} of the {name} pool, past 2^31 elements, do not hold what was written"
            )
