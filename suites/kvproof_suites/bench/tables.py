"""States of a block table: where the blocks of a batch lie in the pool.

dense      no paging: keys and values of a sequence are one contiguous tensor; there is no table
identity   block i of the batch is block i of the pool: what most public benchmarks measure
shuffled   a random permutation: the worst that an allocator can leave behind
churned    the order that a replayed trace left behind, cut anew to the block size at hand
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import Protocol

import torch

from kvproof_suites.kernel.pages import Pages

STATES = ("dense", "identity", "shuffled", "churned")
PAGED_STATES = STATES[1:]


class Churned(Protocol):
    """What a replay left behind: ``kvproof_traces.tables.BlockTables`` or the like."""

    block_size: int
    num_blocks: int
    block_tables: Sequence[Sequence[int]]


def lay_out_batch(
    state: str, num_seqs: int, context_len: int, block_size: int, churned: Churned, seed: int = 0
) -> Pages:
    """``num_seqs`` sequences of ``context_len`` tokens, one query row each, that own every block of their pool.

    Raises:
        ValueError: ``state`` is not one of ``PAGED_STATES``.
    """
    blocks_per_seq = -(-context_len // block_size)
    num_blocks = num_seqs * blocks_per_seq
    order = physical_order(state, num_blocks, block_size, churned, seed)
    tables = [tuple(order[start : start + blocks_per_seq]) for start in range(0, num_blocks, blocks_per_seq)]
    return Pages(block_size, num_blocks, tuple(tables), (context_len,) * num_seqs, (1,) * num_seqs)


def physical_order(state: str, num_blocks: int, block_size: int, churned: Churned, seed: int) -> list[int]:
    """A permutation of ``range(num_blocks)``: the physical block of each logical block of the whole batch."""
    if state == "identity":
        return list(range(num_blocks))
    if state == "shuffled":
        return torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    if state == "churned":
        return without_holes(islice(churned_order(churned, block_size), num_blocks))
    raise ValueError(f"unknown state of a block table {state!r}; known: {', '.join(PAGED_STATES)}")


def churned_order(churned: Churned, block_size: int) -> Iterable[int]:
    """Endless: the blocks of the replayed sequences, one after the other, as blocks of ``block_size`` tokens.

    A larger block stands where the first of the blocks inside it stood, a smaller one follows its neighbour. When the
    replay's blocks run out, the same pattern is repeated in the pool behind: churn goes on like that.

    Raises:
        ValueError: the replay left no block behind.
    """
    pattern = recut([block for table in churned.block_tables for block in table], churned.block_size, block_size)
    if not pattern:
        raise ValueError("the replay left no block behind, so that there is no churned order; replay more requests")
    size = max(-(-churned.num_blocks * churned.block_size // block_size), max(pattern) + 1)
    for repeat in count():
        for block in pattern:
            yield block + repeat * size


def recut(blocks: Sequence[int], old_block_size: int, new_block_size: int) -> list[int]:
    """The same places in the same order, in blocks of another size; a block that comes again (shared) is left out."""
    places: dict[int, None] = {}
    for block in blocks:
        first, last = block * old_block_size, (block + 1) * old_block_size - 1
        places.update(dict.fromkeys(range(first // new_block_size, last // new_block_size + 1)))
    return list(places)


def without_holes(blocks: Iterable[int]) -> list[int]:
    """Renumbered by rank, so that the pool is no larger than what is used; the order stays."""
    listed = list(blocks)
    rank = {block: i for i, block in enumerate(sorted(listed))}
    return [rank[block] for block in listed]


def split_rows(pages: Pages, num_parts: int) -> list[Pages]:
    """``num_parts`` batches that share the pool, so that each launch meets other blocks than the one before."""
    size = len(pages.tables) // num_parts
    return [
        Pages(
            pages.block_size,
            pages.num_blocks,
            pages.tables[start : start + size],
            pages.context_lens[start : start + size],
            pages.query_lens[start : start + size],
        )
        for start in range(0, size * num_parts, size)
    ]
