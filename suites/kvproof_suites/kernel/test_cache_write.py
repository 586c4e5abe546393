"""F1 and F2: a cache write changes exactly its slots, a block copy its destinations, and both keep every bit."""

from __future__ import annotations

import pytest
import torch

from kvproof_impls.contract import KVPools
from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import CHUNKED, MIXED, Case, by_tier, decode, prefill
from kvproof_suites.kernel.pages import Pages, by_slot, empty_pools, fill_pool, lay_out, step_tensors
from kvproof_suites.outcome import LawBroken, refuse
from kvproof_suites.under_test import KernelUnderTest

CASES = (
    Case(MIXED),
    Case(decode(1, 16, 17)),
    Case(CHUNKED, block_size=3),
    Case(MIXED, num_kv_heads=2, head_dim=80),
    Case(MIXED, dtype="float32"),
    Case(MIXED, dtype="bfloat16"),
    Case(MIXED, value_dim=32),
    Case(decode(1, 16), block_size=256),
    Case(prefill(130)),
    Case(decode(*[1] * 140), block_size=1),
)
FULL = (
    Case(MIXED, block_size=1),
    Case(MIXED, block_size=256),
    Case(MIXED, num_kv_heads=8, head_dim=128),
    Case(MIXED, head_dim=256),
)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: NaN compares equal to itself, and -0 differs from 0."""
    return tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def random_pools(under_test: KernelUnderTest, case: Case, pages: Pages, generator: torch.Generator) -> KVPools:
    pools = empty_pools(pages, case.spec, under_test.kernel, under_test.device)
    for pool in (pools.key, pools.value):
        fill_pool(pool, torch.randn(pages.num_slots, *pool.shape[2:], generator=generator))
    return pools


def require_only(before: torch.Tensor, after: torch.Tensor, slots: list[int], pages: Pages, what: str) -> None:
    """Raise LawBroken where a slot outside ``slots`` has changed a bit."""
    changed = (bits(before) != bits(after)).flatten(1).any(1).nonzero().flatten().tolist()
    if strays := sorted(set(changed) - set(slots)):
        raise LawBroken(f"{what} changed {len(strays)} slots that are not its own, first {pages.describe(strays[0])}")


def require_writer(under_test: KernelUnderTest, method: str) -> None:
    if not hasattr(under_test.kernel, method):
        refuse(f"has no {method}")


def write(
    under_test: KernelUnderTest, case: Case, pages: Pages, pools: KVPools, slots: list[int], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write random K and V, sliced out of one fused projection as engines do; return what was written."""
    heads, dim = case.num_kv_heads, case.head_dim
    fused = torch.randn(len(slots), (case.group_size + 2) * heads, dim, generator=generator)
    fused = fused.to(under_test.device, getattr(torch, case.dtype))
    key = fused[:, case.group_size * heads : -heads]
    value = fused[:, -heads:, : case.spec.value_dim_value]
    mapping = torch.tensor(slots, dtype=torch.int64, device=under_test.device)
    under_test.kernel.write(case.spec, key, value, pools, mapping)
    return key, value


@pytest.mark.law("F1")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_a_write_changes_exactly_its_slots(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    require_writer(kernel, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    before = [by_slot(pool).clone() for pool in (pools.key, pools.value)]
    slots = step_tensors(pages, "cpu").slot_mapping.tolist()
    slots = [-1 if i % 3 == 1 else slot for i, slot in enumerate(slots)] + [-1]
    write(kernel, case, pages, pools, slots, generator)
    for name, old, pool in zip(("key", "value"), before, (pools.key, pools.value), strict=True):
        require_only(old, by_slot(pool), [s for s in slots if s >= 0], pages, f"writing {name}")


@pytest.mark.law("F2")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_what_is_written_is_read_back(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    require_writer(kernel, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    slots = step_tensors(pages, "cpu").slot_mapping.tolist()
    slots = [slots[i] for i in torch.randperm(len(slots), generator=generator)]
    written = write(kernel, case, pages, pools, slots, generator)
    for name, pool, sent in zip(("key", "value"), (pools.key, pools.value), written, strict=True):
        wrong = (bits(by_slot(pool)[slots]) != bits(sent)).flatten(1).any(1).nonzero().flatten().tolist()
        assert not wrong, (
            f"{len(wrong)} slots of {name} do not hold what was written, first {pages.describe(slots[wrong[0]])}"
        )


@pytest.mark.law("F1")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_a_block_copy_changes_exactly_its_destinations(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    require(kernel, case)
    require_writer(kernel, "copy_blocks")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    pools = random_pools(kernel, case, pages, generator)
    blocks = torch.randperm(pages.num_blocks, generator=generator).tolist()
    # One source has two destinations; the rest are pairs, more of them than a launch takes at a time.
    copies = [(blocks[0], blocks[1]), (blocks[0], blocks[2]), *zip(blocks[3::2], blocks[4::2], strict=False)]
    before = [pool.clone() for pool in (pools.key, pools.value)]
    kernel.kernel.copy_blocks(pools, copies)
    for name, old, pool in zip(("key", "value"), before, (pools.key, pools.value), strict=True):
        expected = old.clone()
        for source, destination in copies:
            expected[destination] = old[source]
        wrong = (bits(expected) != bits(pool)).flatten(1).any(1).nonzero().flatten().tolist()
        assert not wrong, f"copying {copies} left blocks {wrong} of the {name} pool other than they must be"
