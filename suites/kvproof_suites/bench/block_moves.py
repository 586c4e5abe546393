"""Cache writes and block copies in a contest: what goes where, what it leaves behind, and the bytes that it moves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.formats import number_format
from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.contests import Entrant, NotTimed, Prepared, Ready
from kvproof_suites.bench.eviction import Evictor, as_given
from kvproof_suites.bench.huge_pages import in_huge_pages
from kvproof_suites.bench.problem import itemsize
from kvproof_suites.bench.race import Contestant
from kvproof_suites.bench.tables import Churned, lay_out_batches, physical_order
from kvproof_suites.bench.timing import Timing, roof
from kvproof_suites.bench.untimed import told_instead, why_not_timed
from kvproof_suites.kernel.pages import Pages, empty_pools, step_tensors
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest


@dataclass
class BlockMoves:
    """Prepares the entrants of one contest after the other."""

    kernels: Mapping[str, KernelUnderTest]
    device: str
    churned: Churned
    seed: int

    def prepare(self, entrants: Sequence[Entrant]) -> Iterator[tuple[Entrant, Prepared]]:
        for name, cell in entrants:
            under_test = self.kernels[name]
            reason = why_not_timed(under_test, cell)
            if reason is not None:
                yield (name, cell), NotTimed(reason, told_instead(under_test, cell))
                continue
            make = writing if cell.group == "write" else copying
            call, check = make(under_test, cell, self.churned, self.seed)
            prepare = Evictor(self.device) if cell.cache == "cold" else as_given
            contestant = Contestant(call, [None], prepare, check, mode=cell.mode)
            yield (name, cell), Ready(contestant, functools.partial(self._figures, (name, cell)))

    def _figures(self, entrant: Entrant, timings: Mapping[Any, Timing]) -> dict[str, Any]:
        cell, seconds = entrant[1], timings[entrant].median_seconds
        gb_per_second, ceiling = moved_bytes(cell) / seconds / 1e9, roof(self.device).copy_gb_per_second
        told = {"gb_per_second": gb_per_second, "roof_gb_per_second": ceiling, "share_of_roof": gb_per_second / ceiling}
        return told | {"tokens_per_second": num_moved(cell) / seconds}


def num_moved(cell: Cell) -> int:
    """Tokens that one call handles."""
    return cell.point.num_tokens if cell.group == "write" else len(cell.point.seqs) * cell.block_size


def moved_bytes(cell: Cell) -> int:
    """Read and written: of a write, rows in the query's type, their place in the pool, and the slots; of a copy, blocks
    twice."""
    heads, tokens = cell.heads, num_moved(cell)
    elements = heads.num_kv_heads * (heads.head_dim + (0 if heads.mla else heads.value_dim or heads.head_dim))
    stored = itemsize(heads.stored_dtype)
    if cell.group == "copy":
        return 2 * tokens * elements * stored
    return tokens * (elements * (itemsize(heads.dtype) + stored) + 8)


Made = tuple[Callable[[Any], Any], Callable[[int, Any], None]]
"""(call, check)"""


def writing(under_test: KernelUnderTest, cell: Cell, churned: Churned, seed: int) -> Made:
    """New tokens of every sequence of the point into the slots of its last positions."""
    spec, device = cell.heads.spec(cell.block_size), under_test.device
    (pages,) = lay_out_batches(cell.table, cell.point.seqs, 1, cell.block_size, churned, seed)
    pools, slots = empty_pools(pages, spec, under_test.kernel, device), step_tensors(pages, device).slot_mapping
    generator, dtype = torch.Generator(device).manual_seed(seed), getattr(torch, spec.dtype)

    def rows(dim: int) -> Tensor:
        return torch.randn(len(slots), spec.num_kv_heads, dim, generator=generator, device=device).to(dtype)

    key = rows(spec.head_dim)
    value = key[..., : spec.value_dim_value] if spec.mla else rows(spec.value_dim_value)
    block, offset = slots // cell.block_size, slots % cell.block_size
    parts = [("keys", pools.key, key, spec.k_scale)]
    parts += [] if spec.mla else [("values", pools.value, value, spec.v_scale)]
    for _, pool, _, _ in parts:
        in_huge_pages(pool)

    def check(place: int, result: Any) -> None:
        for name, pool, given, scale in parts:
            got = pool[block, offset].double() * scale
            if not bool(((got - given.double()).abs() <= rounding(spec, given.double(), scale)).all()):
                raise LawBroken(f"not timed: the pool does not hold the {name} that were to be written")
            pool[block, offset] = torch.zeros((), dtype=pool.dtype, device=device)

    return lambda _: under_test.kernel.write(spec, key, value, pools, slots), check


def rounding(spec: AttentionSpec, given: Tensor, scale: float) -> Tensor:
    """How far what a code means may lie from what was given; codes saturate far outside of the data."""
    stored = spec.kv_dtype or spec.dtype
    if stored == spec.dtype:
        return torch.zeros_like(given)
    if stored == "int8":
        return torch.full_like(given, scale / 2 * (1 + 1e-6)) + (given.abs() - 127 * scale).clamp(min=0)
    code = number_format(stored)
    return given.abs() * code.unit_roundoff * (1 + 1e-6) + scale * code.smallest_subnormal / 2


def copying(under_test: KernelUnderTest, cell: Cell, churned: Churned, seed: int) -> Made:
    """As many blocks as the point has sequences, from one half of the pool's order to the other."""
    spec, device, count = cell.heads.spec(cell.block_size), under_test.device, len(cell.point.seqs)
    order = physical_order(cell.table, 2 * count, cell.block_size, churned, seed)
    sources, targets = order[:count], order[count:]
    copies = list(zip(sources, targets, strict=True))
    pages = Pages(cell.block_size, 2 * count, (tuple(order),), (2 * count * cell.block_size,), (0,))
    pools = empty_pools(pages, spec, under_test.kernel, device)
    parts = [in_huge_pages(pool) for pool in ([pools.key] if spec.mla else [pools.key, pools.value])]
    generator = torch.Generator(device).manual_seed(seed)
    for pool in parts:
        pool.copy_(torch.randint(1, 100, pool.shape, generator=generator, device=device))

    def check(place: int, result: Any) -> None:
        for pool in parts:
            if not torch.equal(as_bytes(pool[targets]), as_bytes(pool[sources])):
                raise LawBroken("not timed: the destination blocks do not hold what the source blocks hold")
            pool[targets] = torch.zeros((), dtype=pool.dtype, device=device)

    return lambda _: under_test.kernel.copy_blocks(pools, copies), check


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
