"""One sequence: admitted, grown, forked, cut back, published, given back. What can run out of blocks counts first, and
returns ``SHORT`` or ``TOO_NARROW`` with nothing changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof_impls.paged.compiling import compiled
from kvproof_impls.paged.free_lists import give_back, num_free, own, take
from kvproof_impls.paged.layout import CUT, LARGEST, NONE, State
from kvproof_impls.paged.names import bucket, lookup, node_of, publish, unpublish

SHORT, TOO_NARROW, NO_ROW = -1, -2, -3
"""Too few free blocks; or too few columns or rows in the tables: widen them and call again. Short is said
first, so that no array grows for a call that fails."""


@compiled
def blocks_for(state: State, num_tokens: int) -> int:
    return -(-num_tokens // state.pool[0].block_size)


@compiled
def is_too_long(state: State, num_blocks: int) -> bool:
    """Whether so many blocks hold more tokens than a length can tell."""
    return num_blocks * state.pool[0].block_size > LARGEST


@compiled
def find(state: State, tokens: Any, fields: Any, root: int, hits: Any) -> int:
    """How many leading blocks of ``tokens`` are found, their ids in ``hits``; one token is always left to compute.

    ``fields`` [blocks of tokens] int32, or [0] when no block has any beside its tokens.
    """
    size = state.pool[0].block_size
    parent, generation = root, 0
    for index in range((tokens.size - 1) // size if tokens.size > 0 else 0):
        block_fields = fields[index] if fields.size > 0 else 0
        place = bucket(state, parent, generation, block_fields, tokens, index * size)
        block = lookup(state, place, parent, generation, block_fields, tokens, index * size)
        if block == NONE:
            return index
        hits[index], parent, generation = block, block, state.blocks[block].generation
    return (tokens.size - 1) // size if tokens.size > 0 else 0


@compiled
def allocate(state: State, row: int, tokens: Any, fields: Any, root: int, num_spare: int, finds: bool) -> int:
    """Admit the prompt ``tokens`` as sequence ``row``; how many leading blocks were found, or SHORT, or TOO_NARROW, or,
    where ``row`` is NONE, NO_ROW.

    ``num_spare``: blocks that must be left. ``finds``: look for cached ones. They are owned before anything is taken,
    so that none of them is evicted.
    """
    table, num_blocks = state.tables[max(row, 0)], blocks_for(state, tokens.size)
    if row == NONE or num_blocks > table.size:
        table = np.empty(num_blocks, np.int32)
    num_hits = find(state, tokens, fields, root, table) if finds and state.contents.size > 0 else 0
    num_needed = num_blocks - num_hits
    for index in range(num_hits):
        num_needed += state.blocks[table[index]].references == 0
    if num_needed + num_spare > num_free(state) or is_too_long(state, num_blocks):
        return SHORT
    if num_blocks > state.tables.shape[1]:
        return TOO_NARROW
    if row == NONE:
        return NO_ROW
    sequence = state.sequences[row]
    for index in range(num_hits):
        own(state, table[index])
    for index in range(num_hits, num_blocks):
        table[index] = take(state)
        if fields.size > 0:
            state.fields[table[index]] = fields[index]
    sequence.length, sequence.num_blocks, sequence.room = 0, num_blocks, 0
    sequence.root, sequence.publishes, sequence.num_gone, sequence.mark = root, 1, 0, 0
    state.pool[0].longest = max(state.pool[0].longest, num_blocks)
    know(state, row, num_hits)
    store(state, row, tokens, num_hits * state.pool[0].block_size)
    rebase(state, row)
    return num_hits


@compiled
def store(state: State, row: int, tokens: Any, start: int) -> None:
    """Append ``tokens`` to what is known of the content; those before ``start`` are there already."""
    if tokens.size == 0:
        return
    size, table, sequence = state.pool[0].block_size, state.tables[row], state.sequences[row]
    first = sequence.length
    sequence.length += tokens.size
    while state.contents.size > 0 and start < tokens.size:  # block by block: a division a token would be most of it
        offset = (first + start) % size
        slot, num_tokens = table[(first + start) // size] * size + offset, min(size - offset, tokens.size - start)
        for index in range(num_tokens):
            state.contents[slot + index] = tokens[start + index]
        start += num_tokens
    settle_room(state, row)


@compiled
def know(state: State, row: int, num_known: int) -> None:
    """The first ``num_known`` blocks of the table have a node, and what is published next comes below the last."""
    sequence = state.sequences[row]
    sequence.num_known = num_known
    sequence.parent, sequence.parent_generation = sequence.root, 0
    if num_known > 0:
        sequence.parent, sequence.parent_generation = node_of(state, state.tables[row, num_known - 1])


@compiled
def settle_room(state: State, row: int) -> None:
    """The last block's free slots may be written without looking, since the sequence owns that block alone."""
    size, sequence = state.pool[0].block_size, state.sequences[row]
    offset = sequence.length % size
    sequence.room = size - offset if offset > 0 else 0
    if offset > 0:
        sequence.next_slot = state.tables[row, sequence.length // size] * size + offset


@compiled
def rebase(state: State, row: int) -> None:
    """The table is another one now."""
    pool, sequence = state.pool[0], state.sequences[row]
    pool.clock += 1
    sequence.stamp = sequence.base = pool.clock


@compiled
def writes_shared_tail(state: State, row: int) -> bool:
    """Whether the next token goes into a block that another sequence owns as well."""
    size, sequence = state.pool[0].block_size, state.sequences[row]
    if sequence.length % size == 0:
        return False
    return state.blocks[state.tables[row, sequence.length // size]].references > 1


@compiled
def make_room(state: State, row: int, num_tokens: int, copies: Any) -> int:
    """Blocks for ``num_tokens`` more, the first of them writable; how many copies are to be made first, or SHORT."""
    size, sequence = state.pool[0].block_size, state.sequences[row]
    shared = writes_shared_tail(state, row)
    num_fresh = max(0, blocks_for(state, sequence.length + num_tokens) - sequence.num_blocks)
    if num_fresh + shared > num_free(state) or is_too_long(state, sequence.num_blocks + num_fresh):
        return SHORT
    if sequence.num_blocks + num_fresh > state.tables.shape[1]:
        return TOO_NARROW
    if shared:
        copy_tail(state, row, copies)
    elif sequence.length % size > 0:
        unpublish(state, state.tables[row, sequence.length // size])  # truncated into, and about to change
    if sequence.publishes >= CUT:
        state.fields[state.tables[row, sequence.length // size]] = sequence.publishes - CUT
        sequence.publishes = 1
    for _ in range(num_fresh):
        add_block(state, row)
    settle_room(state, row)
    return 1 if shared else 0


@compiled
def add_block(state: State, row: int) -> int:
    """One more block at the end of the table, of which there must be one free."""
    pool, sequence = state.pool[0], state.sequences[row]
    block = take(state)
    state.tables[row, sequence.num_blocks] = block
    sequence.num_blocks += 1
    pool.longest = max(pool.longest, sequence.num_blocks)
    pool.clock += 1
    sequence.stamp = pool.clock
    return block


@compiled
def copy_tail(state: State, row: int, copies: Any) -> None:
    """Give ``row`` a copy of its partly filled last block; (source, destination) goes into ``copies`` [2]."""
    size, sequence = state.pool[0].block_size, state.sequences[row]
    last, offset = sequence.length // size, sequence.length % size
    source, copy = state.tables[row, last], take(state)
    state.tables[row, last] = copy
    copies[0], copies[1] = source, copy
    if state.contents.size > 0:
        state.contents[copy * size : copy * size + offset] = state.contents[source * size : source * size + offset]
    if state.fields.size > 0:
        state.fields[copy] = state.fields[source]
    give_back(state, source)
    rebase(state, row)


@compiled
def append(state: State, row: int, tokens: Any, copies: Any) -> int:
    """Slots for ``tokens``; how many copies are to be made before they are written, or SHORT."""
    num_copies = 0
    if tokens.size > state.sequences[row].room:
        num_copies = make_room(state, row, tokens.size, copies)
        if num_copies < 0:
            return num_copies
    first = state.sequences[row].length
    store(state, row, tokens, 0)
    release_unseen(state, row, first)
    return num_copies


@compiled
def reserve(state: State, row: int, num_tokens: int, copies: Any) -> int:
    return 0 if num_tokens <= state.sequences[row].room else make_room(state, row, num_tokens, copies)


@compiled
def release_unseen(state: State, row: int, first_query: int) -> None:
    """Give back the blocks that end before what a query at position ``first_query`` sees, where there is a window."""
    pool, sequence = state.pool[0], state.sequences[row]
    if pool.window == 0:
        return
    num_unseen = max(0, first_query - pool.window + 1) // pool.block_size
    if num_unseen <= sequence.num_gone:
        return
    for index in range(num_unseen - 1, sequence.num_gone - 1, -1):
        give_back(state, state.tables[row, index])
        state.tables[row, index] = pool.num_blocks  # the null block
    if num_unseen > sequence.num_known:
        sequence.publishes = 0  # a block that was never published is missing from its chain
    sequence.num_gone = num_unseen
    rebase(state, row)


@compiled
def cut(state: State, row: int, num_blocks: int) -> None:
    """Give back the blocks from ``num_blocks`` on, the last first, so that none outlives its parent in the cache."""
    sequence = state.sequences[row]
    for index in range(sequence.num_blocks - 1, max(num_blocks, sequence.num_gone) - 1, -1):
        give_back(state, state.tables[row, index])
    sequence.num_blocks = num_blocks
    rebase(state, row)


@compiled
def truncate(state: State, row: int, num_tokens: int) -> None:
    sequence = state.sequences[row]
    cut(state, row, blocks_for(state, num_tokens))
    sequence.length, sequence.room = num_tokens, 0  # the last block may be shared or findable: look before writing
    if num_tokens // state.pool[0].block_size < sequence.num_known:
        know(state, row, num_tokens // state.pool[0].block_size)


@compiled
def fork(state: State, parent: int, child: int) -> None:
    """``child`` owns every block of ``parent`` as well; whoever writes into the last one first copies it."""
    num_blocks = blocks_for(state, state.sequences[parent].length)
    for index in range(state.sequences[parent].num_gone, num_blocks):
        own(state, state.tables[parent, index])
    state.tables[child, :num_blocks] = state.tables[parent, :num_blocks]
    state.sequences[child] = state.sequences[parent]
    state.sequences[child].num_blocks = num_blocks
    state.sequences[parent].room = state.sequences[child].room = 0
    rebase(state, child)


@compiled
def commit(state: State, row: int) -> None:
    """Publish the complete blocks of ``row`` that are not known yet."""
    sequence, size = state.sequences[row], state.pool[0].block_size
    if sequence.publishes == 0 or state.contents.size == 0:
        return
    while (sequence.num_known + 1) * size <= sequence.length:
        block = state.tables[row, sequence.num_known]
        publish(state, block, sequence.parent, sequence.parent_generation)
        sequence.parent, sequence.parent_generation = node_of(state, block)
        sequence.num_known += 1
