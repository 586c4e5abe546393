"""A decode step of a whole batch: every sequence grows by a token, and the step tensors say so, in place.

A row of the block table that still holds the same sequence gets the blocks that were added to it; only a row that holds
another one, or whose sequence changed otherwise, is written anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof_impls.paged.compiling import compiled
from kvproof_impls.paged.free_lists import num_free
from kvproof_impls.paged.layout import State
from kvproof_impls.paged.places import Buffers
from kvproof_impls.paged.sequences import (
    SHORT,
    TOO_NARROW,
    add_block,
    is_too_long,
    make_room,
    release_unseen,
    writes_shared_tail,
)


@compiled
def step(state: State, buffers: Buffers, tokens: Any) -> int:
    """Append ``tokens[i]`` to the sequence of row i, for all rows or, with SHORT or TOO_NARROW, for none; how many
    copies are to be made before this step writes."""
    short = shortage(state, buffers.rows[: tokens.size])
    if short != 0:
        return short
    num_copies = 0
    for index in range(tokens.size):
        row = buffers.rows[index]
        sequence = state.sequences[row]
        if sequence.room == 0:
            num_copies += enter_block(state, row, buffers.copies[2 * num_copies :])
        write(state, buffers, index, tokens[index])
    if state.pool[0].window > 0:
        for index in range(tokens.size):
            row = buffers.rows[index]
            release_unseen(state, row, state.sequences[row].length - 1)
    update_tables(state, buffers, tokens.size)
    return num_copies


@compiled
def enter_block(state: State, row: int, copies: Any) -> int:
    """Room for one more token, where the last block has none or is not the sequence's own; how many copies that takes.

    Mostly a new block, for which nothing has to be divided.
    """
    sequence, size = state.sequences[row], state.pool[0].block_size
    if sequence.length == sequence.num_blocks * size:
        block = add_block(state, row)
    else:
        num_copies = make_room(state, row, 1, copies)
        if sequence.room > 0:
            return num_copies
        block = state.tables[row, sequence.length // size]  # one that was reserved
    sequence.next_slot, sequence.room = block * size, size
    return 0


@compiled
def update_tables(state: State, buffers: Buffers, num_rows: int) -> None:
    """Bring the block tables up to date, and with them how many leading blocks all rows share.

    Those that were shared are still, but for a row that changed there, or that was not counted before.
    """
    common, num_counted = buffers.common[0], min(buffers.common[1], num_rows)
    changed = buffers.common[1] != num_rows
    for index in range(num_rows):
        if state.sequences[buffers.rows[index]].stamp != buffers.held[index].stamp:
            num_kept = copy_table(state, buffers, index, common)
            common = min(common, num_kept) if index < num_counted else common
            changed = True
    if changed:
        rows = buffers.rows[:num_rows]
        buffers.common[0], buffers.common[1] = num_common(state, rows, num_counted, common), num_rows


@compiled
def write(state: State, buffers: Buffers, index: int, token: int) -> None:
    """The token's slot, which the sequence owns alone."""
    sequence = state.sequences[buffers.rows[index]]
    slot = sequence.next_slot
    if state.contents.size > 0:
        state.contents[slot] = token
    sequence.next_slot = slot + 1
    sequence.room -= 1
    sequence.length += 1
    buffers.slot_mapping[index] = slot
    buffers.context_lens[index] = sequence.length


@compiled
def shortage(state: State, rows: Any) -> int:
    """0 when every row can have its token, else SHORT or TOO_NARROW. A row needs one block at most, so that mostly no
    row has to be looked at."""
    longest = state.pool[0].longest
    if rows.size <= num_free(state) and longest < state.tables.shape[1] and not is_too_long(state, longest + 1):
        return 0
    num_needed, num_tails, size, result = 0, 0, state.pool[0].block_size, 0
    for row in rows:
        sequence = state.sequences[row]
        if sequence.room > 0:
            continue
        if sequence.length == sequence.num_blocks * size:
            num_needed += 1
            if is_too_long(state, sequence.num_blocks + 1):
                return SHORT
            if sequence.num_blocks == state.tables.shape[1]:
                result = TOO_NARROW
        elif writes_shared_tail(state, row):
            num_tails += 1
    if num_needed + num_tails > num_free(state) and num_needed + num_copies(state, rows) > num_free(state):
        return SHORT
    return result


@compiled
def num_copies(state: State, rows: Any) -> int:
    """Copies that the writers into shared last blocks cause: each takes an owner off, and when all owners of a block
    write, the last one writes in place. Counted by doing just that, and undone."""
    sources, copies = np.empty(rows.size, np.int32), 0
    for row in rows:
        if state.sequences[row].room == 0 and writes_shared_tail(state, row):
            sources[copies] = tail(state, row)
            state.blocks[sources[copies]].references -= 1
            copies += 1
    for source in sources[:copies]:
        state.blocks[source].references += 1
    return copies


@compiled
def tail(state: State, row: int) -> int:
    return state.tables[row, state.sequences[row].length // state.pool[0].block_size]


@compiled
def copy_table(state: State, buffers: Buffers, index: int, num_compared: int) -> int:
    """Bring row ``index`` of the block tables up to date; entries past its last block are 0. How many of the first
    ``num_compared`` entries stayed as they were."""
    row = buffers.rows[index]
    sequence, held = state.sequences[row], buffers.held[index]
    first = held.num_blocks if held.base == sequence.base else 0
    num_kept = num_compared
    if first == 0:
        held_row = buffers.block_tables[index]
        num_kept = num_alike(held_row, state.tables[row], min(num_compared, held.num_blocks, sequence.num_blocks))
        first = num_kept
    buffers.block_tables[index, first : sequence.num_blocks] = state.tables[row, first : sequence.num_blocks]
    if held.num_blocks > sequence.num_blocks:
        buffers.block_tables[index, sequence.num_blocks : held.num_blocks] = 0
    held.stamp, held.base, held.num_blocks = sequence.stamp, sequence.base, sequence.num_blocks
    return num_kept


@compiled
def num_common(state: State, rows: Any, num_counted: int, common: int) -> int:
    """Leading blocks that all tables name, of which the first ``num_counted`` rows share ``common``; none with a
    window, where the null block stands for many."""
    if rows.size == 0 or state.pool[0].window > 0:
        return 0
    first = state.tables[rows[0]]
    if num_counted == 0:
        num_counted, common = 1, state.sequences[rows[0]].num_blocks
    for row in rows[num_counted:]:
        common = num_alike(first, state.tables[row], min(common, state.sequences[row].num_blocks))
    limit = state.sequences[rows[0]].num_blocks
    for row in rows:
        if limit == common:
            break
        limit = min(limit, state.sequences[row].num_blocks)
        limit = common + num_alike(first[common:limit], state.tables[row, common:limit], limit - common)
    return limit


@compiled
def num_alike(one: Any, other: Any, most: int) -> int:
    """Of the first ``most`` entries, those before the first that differs."""
    for index in range(most):
        if one[index] != other[index]:
            return index
    return most
