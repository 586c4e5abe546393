"""Launches of a kernel over one pool, laid out in a state of the block table: what a contest times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvproof_impls.contract import KVPools
from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.eviction import rotated_bytes
from kvproof_suites.bench.huge_pages import in_huge_pages
from kvproof_suites.bench.problem import Problem, draw
from kvproof_suites.bench.tables import Churned, lay_out_batches, shared_tokens
from kvproof_suites.kernel.pages import Pages, empty_pools, step_tensors
from kvproof_suites.under_test import KernelUnderTest

MOST_TURNS = 8
FEW_TURNS = 2
"""Small batches would need thousands to fill a cache: they are few then, and an ``Evictor`` empties it."""


@dataclass(frozen=True)
class Launches:
    """Every turn's launch; each has a pool to itself, or blocks of its own in one pool."""

    turns: Sequence[tuple[Callable[[Tensor], Any], Tensor]]
    """(launch, query) of each turn"""
    plan: Callable[[], Any] | None
    """Plans the first turn once more, to be timed; None: there is nothing to plan."""

    def run(self, turn: tuple[Callable[[Tensor], Any], Tensor]) -> Any:
        launch, query = turn
        return launch(query)


def problem_of(cell: Cell) -> Problem:
    return Problem(cell.point, cell.heads, shared_tokens(cell.table, cell.point.context_lens, cell.block_size))


def num_turns(cell: Cell, device: str) -> int:
    """Batches that take turns, so that each finds the cache full of others."""
    needed = -(-rotated_bytes(device) // Problem(cell.point, cell.heads).kv_bytes)
    return max(needed, FEW_TURNS) if needed <= MOST_TURNS else FEW_TURNS


def launches(under_test: KernelUnderTest, cell: Cell, churned: Churned, seed: int) -> Launches:
    return dense_launches(under_test, cell, seed) if cell.table == "dense" else paged(under_test, cell, churned, seed)


def dense_launches(under_test: KernelUnderTest, cell: Cell, seed: int) -> Launches:
    """The kernel's own family without a table, on each sequence's contiguous keys and values."""
    spec, attend = cell.heads.spec(cell.block_size), under_test.kernel.dense
    turns = []
    for contents in draw(problem_of(cell), num_turns(cell, under_test.device), under_test.device, seed):
        keys, values = (in_huge_pages(torch.stack(rows)) for rows in (contents.keys, contents.values))
        turns.append((functools.partial(_dense, attend, spec, keys, values), contents.query))
    return Launches(turns, None)


def _dense(attend: Any, spec: Any, keys: Tensor, values: Tensor, query: Tensor) -> Any:
    return attend(spec, query, keys, values)


def paged(under_test: KernelUnderTest, cell: Cell, churned: Churned, seed: int) -> Launches:
    """Lay the contents of all turns through the blocks of one pool, and plan each."""
    spec, kernel, device = cell.heads.spec(cell.block_size), under_test.kernel, under_test.device
    problem, turns = problem_of(cell), num_turns(cell, device)
    pages = lay_out_batches(cell.table, cell.point.seqs, turns, cell.block_size, churned, seed)
    pools = empty_pools(pages[0], spec, kernel, device)
    in_huge_pages(pools.key)
    in_huge_pages(pools.value)
    prefix = problem.shared_tokens // cell.block_size
    batches = [step_tensors(one, device, extra_width=0, common_prefix_blocks=prefix) for one in pages]
    contents = draw(problem, turns, device, seed)
    for one, data in zip(pages, contents, strict=True):
        for seq in range(len(cell.point.seqs)):
            put(pools.key, one, seq, data.keys[seq])
            if not spec.mla:
                put(pools.value, one, seq, data.values[seq])
    planned = [kernel.plan(spec, batch) for batch in batches]
    runs = [functools.partial(_paged, launch, pools) for launch in planned]
    turns_made = list(zip(runs, [data.query for data in contents], strict=True))
    return Launches(turns_made, lambda: kernel.plan(spec, batches[0]))


def _paged(launch: Any, pools: KVPools, query: Tensor) -> Any:
    return launch(query, pools)


def put(pool: Tensor, pages: Pages, seq: int, rows: Tensor) -> None:
    """``rows`` [context_len, num_kv_heads, dim] of a sequence into its blocks, whatever the pool's storage order."""
    position = torch.arange(len(rows), device=rows.device)
    block = torch.tensor(pages.tables[seq], device=rows.device)[position // pages.block_size]
    target, given = (_storable(tensor) for tensor in (pool, rows))
    target[block, position % pages.block_size] = given


def _storable(tensor: Tensor) -> Tensor:
    """8-bit floats as bytes, which every device can scatter."""
    return tensor.view(torch.uint8) if tensor.dtype.is_floating_point and tensor.itemsize == 1 else tensor
