"""What must hold in a block allocator after every operation: each invariant has a name, a sentence and a check.

A check reads the allocator's state, recomputes what it states from scratch, and yields one line for each fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproof_reference.blocks import ROOT_HASH, chain_hash

if TYPE_CHECKING:
    from kvproof_reference.allocator import ReferenceAllocator


@dataclass(frozen=True)
class Invariant:
    """``faults(allocator)`` yields what breaks the ``sentence``; nothing when it holds."""

    name: str
    sentence: str
    faults: Callable[[ReferenceAllocator], Iterator[str]]


def conservation(allocator: ReferenceAllocator) -> Iterator[str]:
    held = {block for state in allocator.sequences.values() for block in state.table}
    places = Counter([*held, *allocator.empty, *allocator.cached])
    for block in sorted(set(range(allocator.num_blocks)) | set(places)):
        if block not in range(allocator.num_blocks):
            yield f"block {block} is outside the pool of {allocator.num_blocks}"
        elif places[block] != 1:
            yield f"block {block} is {'nowhere' if not places[block] else 'both held and free, or free twice'}"


def reference_counts(allocator: ReferenceAllocator) -> Iterator[str]:
    owners = Counter(block for state in allocator.sequences.values() for block in state.table)
    for block in allocator.blocks:
        if block.num_references != owners[block.id]:
            yield f"block {block.id} counts {block.num_references} references, {owners[block.id]} table entries hold it"


def no_block_twice_in_a_table(allocator: ReferenceAllocator) -> Iterator[str]:
    for seq, state in allocator.sequences.items():
        for block, count in Counter(state.table).items():
            if count > 1:
                yield f"sequence {seq!r} holds block {block} {count} times"


def table_length(allocator: ReferenceAllocator) -> Iterator[str]:
    for seq, state in allocator.sequences.items():
        num_needed = -(-len(state.tokens) // allocator.block_size)
        if len(state.table) != num_needed:
            yield f"sequence {seq!r} has {len(state.tokens)} tokens, {len(state.table)} blocks instead of {num_needed}"


def queues(allocator: ReferenceAllocator) -> Iterator[str]:
    for block in allocator.blocks:
        expected = None if block.num_references else "empty" if block.hash is None else "cached"
        actual = [name for name in ("empty", "cached") if block.id in getattr(allocator, name)]
        if actual != ([expected] if expected else []):
            yield f"block {block.id} should be in {expected or 'no queue'}, is in {' and '.join(actual) or 'none'}"


def free_count(allocator: ReferenceAllocator) -> Iterator[str]:
    num_unreferenced = sum(block.num_references == 0 for block in allocator.blocks)
    if allocator.num_free_blocks() != num_unreferenced:
        yield f"num_free_blocks() is {allocator.num_free_blocks()}, {num_unreferenced} blocks are unreferenced"


def map_and_blocks(allocator: ReferenceAllocator) -> Iterator[str]:
    for digest, id in allocator.findable.items():
        if allocator.blocks[id].hash != digest:
            yield f"the map leads from hash {digest} to block {id}, whose hash is {allocator.blocks[id].hash}"
    for block in allocator.blocks:
        found = None if block.hash is None else allocator.findable.get(block.hash)
        if block.hash is not None and found != block.id:
            yield f"block {block.id} has hash {block.hash}, under which the map has {found}"


def findable_complete(allocator: ReferenceAllocator) -> Iterator[str]:
    for id in allocator.findable.values():
        if len(allocator.blocks[id].tokens) != allocator.block_size:
            yield f"block {id} is findable with {len(allocator.blocks[id].tokens)} of {allocator.block_size} tokens"


def chains(allocator: ReferenceAllocator) -> Iterator[str]:
    for block in allocator.blocks:
        if block.hash is None:
            continue
        parent_hash = ROOT_HASH if block.parent is None else allocator.blocks[block.parent].hash
        if parent_hash is None:
            yield f"block {block.id} is findable, its parent {block.parent} is not"
        elif chain_hash(parent_hash, block.tokens, block.key, allocator.block_size) != block.hash:
            yield f"block {block.id} has a hash that is not that of its parent, tokens and key"


def eviction_order(allocator: ReferenceAllocator) -> Iterator[str]:
    seen: set[int] = set()
    for id in allocator.cached:
        if allocator.blocks[id].parent in seen:
            yield f"block {id} would be evicted after its parent {allocator.blocks[id].parent}"
        seen.add(id)


def contents(allocator: ReferenceAllocator) -> Iterator[str]:
    for seq, state in allocator.sequences.items():
        for index, id in enumerate(state.table):
            block = allocator.blocks[id]
            own = tuple(state.tokens[index * allocator.block_size : (index + 1) * allocator.block_size])
            if block.hash is not None and (block.tokens[: len(own)] != own or block.key != state.key):
                yield f"block {id} is findable as {block.tokens} of {block.key!r}, {seq!r} has written {own} there"


def owners_agree(allocator: ReferenceAllocator) -> Iterator[str]:
    longest: dict[int, tuple[Hashable, list[int]]] = {}
    for seq, state in allocator.sequences.items():
        for index, id in enumerate(state.table):
            own = state.tokens[: (index + 1) * allocator.block_size]
            other_seq, other = longest.get(id, (seq, own))
            num_shared = min(len(own), len(other))
            num_blocks = [-(-len(tokens) // allocator.block_size) for tokens in (own, other)]
            if own[:num_shared] != other[:num_shared] or num_blocks[0] != num_blocks[1]:
                yield f"{seq!r} and {other_seq!r} share block {id} but not the tokens up to it"
            longest[id] = (other_seq, other) if len(other) > len(own) else (seq, own)


def published_prefix(allocator: ReferenceAllocator) -> Iterator[str]:
    for seq, state in allocator.sequences.items():
        if state.num_findable * allocator.block_size > len(state.tokens):
            yield f"sequence {seq!r} counts {state.num_findable} findable blocks, has {len(state.tokens)} tokens"
        for id in state.table[: state.num_findable]:
            if allocator.blocks[id].hash is None:
                yield f"block {id} of {seq!r} was published and can't be found"


INVARIANTS: tuple[Invariant, ...] = (
    Invariant("conservation", "Every block of the pool is held, empty or cached: one of them, once.", conservation),
    Invariant("reference-counts", "A block counts as many references as table entries hold it.", reference_counts),
    Invariant("no-block-twice", "No table holds a block twice.", no_block_twice_in_a_table),
    Invariant("table-length", "A table is long enough for its tokens, and no longer.", table_length),
    Invariant("queues", "An unreferenced block is queued once, where it belongs; others are not queued.", queues),
    Invariant("free-count", "num_free_blocks() is the number of unreferenced blocks.", free_count),
    Invariant("map-and-blocks", "The map leads from a hash to a block exactly if the block has it.", map_and_blocks),
    Invariant("findable-complete", "A findable block is complete.", findable_complete),
    Invariant("chains", "A findable block has a findable parent, and the hash of its contents.", chains),
    Invariant("eviction-order", "A cached block would be evicted before its parent.", eviction_order),
    Invariant("contents", "A findable block holds what its owners have written.", contents),
    Invariant("owners-agree", "Owners of one block agree in all tokens up to where the shorter ends.", owners_agree),
    Invariant("published-prefix", "What a live sequence hit or published can be found.", published_prefix),
)
