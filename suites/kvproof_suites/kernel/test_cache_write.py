"""F1 and F2: a cache write changes exactly its slots, a block copy its destinations, and both keep every bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvproof_impls.contract import KVPools
from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import (
    A_HEAD,
    A_TOKEN,
    CHUNKED,
    DEEPSEEK,
    MIXED,
    MLA,
    SCALES,
    Case,
    by_tier,
    decode,
    prefill,
)
from kvproof_suites.kernel.guards import changed, guarded, guarded_pools, left
from kvproof_suites.kernel.pages import Pages, by_block, by_slot, empty_pools, fill_pool, lay_out, step_tensors
from kvproof_suites.kernel.scales import powers_of_two, scale_pools
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
    Case(MIXED, **MLA),
)
FULL = (
    Case(MIXED, block_size=1),
    Case(MIXED, block_size=256),
    Case(MIXED, num_kv_heads=8, head_dim=128),
    Case(MIXED, head_dim=256),
    Case(MIXED, **DEEPSEEK),
)

QUANTISED = (
    Case(MIXED, kv_dtype="float8_e4m3fn", **SCALES),
    Case(MIXED, kv_dtype="float8_e5m2", dtype="bfloat16", **A_HEAD),
    Case(MIXED, kv_dtype="int8", dtype="float32", **A_HEAD),
    Case(MIXED, num_kv_heads=2, **A_TOKEN),
    Case(CHUNKED, dtype="bfloat16", block_size=3, **A_TOKEN, **MLA),
)
QUANTISED_FULL = (
    *(
        Case(MIXED, kv_dtype=kv_dtype, dtype=dtype, **A_HEAD)
        for kv_dtype in ("float8_e4m3fn", "float8_e5m2", "int8")
        for dtype in ("float16", "bfloat16", "float32")
    ),
    *(
        Case(decode(1, 16, 17), num_kv_heads=3, head_dim=80, dtype=dtype, **A_TOKEN)
        for dtype in ("bfloat16", "float32")
    ),
    Case(prefill(130), num_kv_heads=2, block_size=1, **A_TOKEN),
    Case(MIXED, **A_TOKEN, **DEEPSEEK),
)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: NaN compares equal to itself, and -0 differs from 0."""
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def random_pools(under_test: KernelUnderTest, case: Case, pages: Pages, generator: torch.Generator) -> KVPools:
    """Numbers of about 1, or codes of about 8, and scales."""
    pools, size = empty_pools(pages, case.spec, under_test.kernel, under_test.device), 8 if case.kv_dtype else 1
    scales = scale_pools(powers_of_two(pages, case.spec, generator), case.spec, pages, under_test.device)
    for pool in by_block(pools).values():
        fill_pool(pool, size * torch.randn(pages.num_slots, *pool.shape[2:], generator=generator))
    return replace(pools, key_scale=scales[0], value_scale=scales[1])


def prepare_write(under_test: KernelUnderTest, case: Case, seed: int) -> tuple[torch.Generator, Pages, KVPools]:
    """What a law of writing starts from; a kernel that takes no such case, or can't write, is refused."""
    require(under_test, case)
    require_writer(under_test, "write")
    generator = torch.Generator().manual_seed(seed)
    pages = lay_out(case, generator)
    return generator, pages, random_pools(under_test, case, pages, generator)


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
    """Write random K and V, sliced out of one fused projection as engines do; return what was written. Latent
    attention writes the keys, and V is what a kernel must not touch."""
    heads, dim = case.num_kv_heads, case.head_dim
    fused = torch.randn(len(slots), (case.group_size + 2) * heads, dim, generator=generator)
    fused = fused.to(under_test.device, getattr(torch, case.dtype))
    key = fused[:, case.group_size * heads : -heads]
    value = fused[:, -heads:, : case.spec.value_dim_value]
    mapping = torch.tensor(slots, dtype=torch.int64, device=under_test.device)
    under_test.kernel.write(case.spec, key, value, pools, mapping)
    return key, value


@pytest.mark.law("F1")
@pytest.mark.parametrize("case", by_tier((*CASES, *QUANTISED), (*FULL, *QUANTISED_FULL)))
def test_a_write_changes_exactly_its_slots(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    generator, pages, pools = prepare_write(kernel, case, seed)
    before = {name: by_slot(part).clone() for name, part in by_block(pools).items()}
    slots = step_tensors(pages, "cpu").slot_mapping.tolist()
    slots = [-1 if i % 3 == 1 else slot for i, slot in enumerate(slots)] + [-1]
    given = [scale.clone() for scale in (pools.key_scale, pools.value_scale) if scale is not None]
    write(kernel, case, pages, pools, slots, generator)
    if case.kv_scales == "head":
        after = [scale for scale in (pools.key_scale, pools.value_scale) if scale is not None]
        if not all(map(torch.equal, given, after)):
            raise LawBroken("a write changed the scales a head, which are given")
    for name, part in by_block(pools).items():
        require_only(before[name], by_slot(part), [s for s in slots if s >= 0], pages, f"writing, the {name}")


GUARDED = (Case(MIXED), QUANTISED[0], QUANTISED[-2])


@pytest.mark.law("F1")
@pytest.mark.parametrize("case", by_tier(GUARDED, (CASES[-1], QUANTISED[-1])))
def test_a_write_stays_inside_its_pools_and_leaves_its_inputs(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    """A slot of -1 lies before the pool, and the last row of the last block ends where it ends."""
    generator, pages, plain = prepare_write(kernel, case, seed)
    pools, parts = guarded_pools(plain)
    slots = [-1, pages.num_slots - 1, 0, -1]
    given = torch.randn(2, len(slots), case.num_kv_heads, case.head_dim, generator=generator)
    key, value = (guarded(rows.to(kernel.device, getattr(torch, case.dtype))) for rows in given)
    mapping = guarded(torch.tensor(slots, device=kernel.device))
    values = value.tensor[..., : case.spec.value_dim_value]
    kernel.kernel.write(case.spec, key.tensor, values, pools, mapping.tensor)
    if names := left(parts):
        raise LawBroken(f"a write changed the memory before or past the {', '.join(names)} pool")
    if names := changed({"key": key, "value": value, "slot mapping": mapping}):
        raise LawBroken(f"a write changed its {', '.join(names)}, or the memory before or past it")


@pytest.mark.law("F2")
@pytest.mark.parametrize("case", by_tier(CASES, FULL))
def test_what_is_written_is_read_back(kernel: KernelUnderTest, case: Case, seed: int) -> None:
    generator, pages, pools = prepare_write(kernel, case, seed)
    slots = step_tensors(pages, "cpu").slot_mapping.tolist()
    slots = [slots[i] for i in torch.randperm(len(slots), generator=generator)]
    written = dict(zip(("key", "value"), write(kernel, case, pages, pools, slots, generator), strict=True))
    for name, pool in by_block(pools).items():
        sent = written[name]
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
    pools, parts = guarded_pools(random_pools(kernel, case, pages, generator))
    blocks = torch.randperm(pages.num_blocks, generator=generator).tolist()
    # One source has two destinations; the rest are pairs, more of them than a launch takes at a time.
    copies = [(blocks[0], blocks[1]), (blocks[0], blocks[2]), *zip(blocks[3::2], blocks[4::2], strict=False)]
    before = {name: part.clone() for name, part in by_block(pools).items()}
    kernel.kernel.copy_blocks(pools, copies)
    for name, pool in by_block(pools).items():
        expected = before[name].clone()
        for source, destination in copies:
            expected[destination] = before[name][source]
        wrong = (bits(expected) != bits(pool)).flatten(1).any(1).nonzero().flatten().tolist()
        assert not wrong, f"copying {copies} left blocks {wrong} of the {name} pool other than they must be"
    if names := left(parts):
        raise LawBroken(f"a block copy changed the memory before or past the {', '.join(names)} pool")
