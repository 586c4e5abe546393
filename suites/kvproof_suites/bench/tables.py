"""States of a block table: where the blocks of a batch lie in the pool.

dense          no paging: keys and values of a sequence are one contiguous tensor; there is no table
identity       block i of the batch is block i of the pool: what most public benchmarks measure
shuffled       a random permutation: the worst that an allocator can leave behind
churned        the order that a replayed trace left behind, cut anew to the block size at hand
shared-prefix  shuffled, and the sequences of a launch share the blocks of the first half of their shortest context
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import Protocol

import torch

from kvproof_suites.kernel.pages import Pages

SHARED = "shared-prefix"
STATES = ("dense", "identity", "shuffled", "churned", SHARED)
PAGED_STATES = STATES[1:]
PREFIX_UNIT = 256


class Churned(Protocol):
    """What a replay left behind: ``kvproof_traces.tables.BlockTables`` or the like."""

    block_size: int
    num_blocks: int
    block_tables: Sequence[Sequence[int]]


def shared_tokens(state: str, context_lens: Sequence[int], block_size: int) -> int:
    """Leading tokens that all sequences of a launch have in common, none where there is one sequence: whole blocks, and
    the same for all block sizes up to PREFIX_UNIT where the contexts are long enough."""
    if state != SHARED or len(context_lens) < 2:
        return 0
    half = min(context_lens) // 2
    unit = PREFIX_UNIT if PREFIX_UNIT % block_size == 0 and half >= PREFIX_UNIT else block_size
    return half // unit * unit


def lay_out_batches(
    state: str,
    seqs: Sequence[tuple[int, int]],
    num_batches: int,
    block_size: int,
    churned: Churned,
    seed: int = 0,
) -> list[Pages]:
    """``num_batches`` batches of ``seqs``, (context length, query length) each, that own every block of their one pool:
    each launch meets other blocks than the one before.

    Raises:
        ValueError: ``state`` is not one of ``PAGED_STATES``.
    """
    context_lens, query_lens = zip(*seqs, strict=True)
    prefix = shared_tokens(state, context_lens, block_size) // block_size
    own = [-(-context_len // block_size) - prefix for context_len in context_lens]
    num_blocks = num_batches * (prefix + sum(own))
    order = iter(physical_order(state, num_blocks, block_size, churned, seed))
    batches = []
    for _ in range(num_batches):
        shared = tuple(islice(order, prefix))
        tables = tuple(shared + tuple(islice(order, count)) for count in own)
        batches.append(Pages(block_size, num_blocks, tables, context_lens, query_lens))
    return batches


def physical_order(state: str, num_blocks: int, block_size: int, churned: Churned, seed: int) -> list[int]:
    """A permutation of ``range(num_blocks)``: the physical block of each logical block of the whole batch."""
    if state == "identity":
        return list(range(num_blocks))
    if state in ("shuffled", SHARED):
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
