"""The prefix cache: which block holds a given run of tokens below a given parent.

A name is looked up by a keyed hash and then compared in full, the parent's node, the fields and every token, so that a
collision, chosen or not, costs time and never content. The parent's node stands for all that comes before: the hash is
a chained one (Kwon et al., SOSP 2023, section 4.4).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof_impls.paged.compiling import compiled
from kvproof_impls.paged.layout import ALIAS, CUT, NONE, UNNAMED, State

ODD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: a multiplier with no structure (Knuth, vol. 3, section 6.4)."""
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
LAST_GENERATION = 2**31 - 1


@compiled
def bucket(state: State, parent: int, generation: int, fields: int, tokens: Any, start: int) -> Any:
    """Where the name of ``tokens[start : start + block_size]`` hashes to."""
    size = state.pool[0].block_size
    mixed = mix(mix(state.pool[0].seed, parent, generation), fields, size)
    for index in range(start, start + size - 1, 2):  # two tokens at a time: each round waits for the one before
        mixed = mix(mixed, tokens[index], tokens[index + 1])
    if size % 2 == 1:
        mixed = mix(mixed, tokens[start + size - 1], 0)
    return np.int64(mixed & np.uint64(state.buckets.size - 1))


@compiled
def mix(mixed: Any, low: int, high: int) -> Any:
    mixed = (mixed ^ (np.uint64(low) & LOW) ^ (np.uint64(high) << HALF)) * ODD
    return mixed ^ (mixed >> HALF)


@compiled
def lookup(state: State, place: int, parent: int, generation: int, fields: int, tokens: Any, start: int) -> int:
    """The block in bucket ``place`` that bears this name, or NONE."""
    block = state.buckets[place]
    while block != NONE and not bears(state, block, parent, generation, fields, tokens, start):
        block = state.blocks[block].chain
    return block


@compiled
def bears(state: State, block: int, parent: int, generation: int, fields: int, tokens: Any, start: int) -> bool:
    record, size = state.blocks[block], state.pool[0].block_size
    if record.parent != parent or record.parent_generation != generation:
        return False
    if state.fields.size > 0 and state.fields[block] != fields:
        return False
    for offset in range(size):  # noqa: SIM110 - a generator is not compiled
        if state.contents[block * size + offset] != tokens[start + offset]:
            return False
    return True


@compiled
def publish(state: State, block: int, parent: int, generation: int) -> None:
    """Make ``block`` findable below the node (parent, generation), or an alias of the block that is so already."""
    start = block * state.pool[0].block_size
    fields = state.fields[block] if state.fields.size > 0 else 0
    place = bucket(state, parent, generation, fields, state.contents, start)
    found = lookup(state, place, parent, generation, fields, state.contents, start)
    if found == block:
        return
    unpublish(state, block)  # it may bear a name below a parent that was evicted since
    record = state.blocks[block]
    if record.generation == LAST_GENERATION:
        return  # one more, and it would be taken for an older one
    if found != NONE:
        record.chain, record.parent, record.parent_generation = ALIAS, found, state.blocks[found].generation
        return
    record.parent, record.parent_generation = parent, generation
    record.generation += 1
    record.chain, state.buckets[place] = state.buckets[place], block
    count_child(state, block, 1)


@compiled
def unpublish(state: State, block: int) -> None:
    """What ``block`` holds is found no more."""
    record = state.blocks[block]
    if is_named(state, block):
        fields = state.fields[block] if state.fields.size > 0 else 0
        start = block * state.pool[0].block_size
        place = bucket(state, record.parent, record.parent_generation, fields, state.contents, start)
        other = state.buckets[place]
        if other == block:
            state.buckets[place] = record.chain
        else:
            while state.blocks[other].chain != block:
                other = state.blocks[other].chain
            state.blocks[other].chain = record.chain
        count_child(state, block, -1)
        if state.num_children.size > 0:
            state.num_children[block] = 0  # what was named below it is an orphan
    record.chain = UNNAMED


@compiled
def is_named(state: State, block: int) -> bool:
    return state.blocks[block].chain >= NONE


@compiled
def node_of(state: State, block: int) -> tuple[int, int]:
    """(block, generation) that stands for the content of a block whose node is known."""
    record = state.blocks[block]
    if record.chain == ALIAS:
        return record.parent, record.parent_generation
    return block, record.generation


@compiled
def parent_of(state: State, block: int) -> int:
    """The block below which ``block`` bears its name, while that still is the same content; else NONE."""
    record = state.blocks[block]
    parent = record.parent
    if not is_named(state, block) or parent < 0 or not is_named(state, parent):
        return NONE
    return parent if state.blocks[parent].generation == record.parent_generation else NONE


@compiled
def is_leaf(state: State, block: int) -> bool:
    return state.num_children.size == 0 or state.num_children[block] == 0


@compiled
def count_child(state: State, block: int, change: int) -> None:
    if state.num_children.size > 0:
        parent = parent_of(state, block)
        if parent != NONE:
            state.num_children[parent] += change


def in_use(state: State) -> set[int]:
    """Numbers of the fields that a findable block or a live sequence bears."""
    named = state.blocks["chain"] >= NONE
    roots = np.concatenate([state.blocks["parent"][named], state.sequences["root"]])
    tails = state.sequences["publishes"] - CUT
    fields = np.concatenate([state.fields[state.fields > 0], tails[tails > 0]])
    return {*(-1 - np.unique(roots[roots < 0])).tolist(), *np.unique(fields).tolist()}
