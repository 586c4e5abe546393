"""A decode step of a whole batch: every sequence grows by a token, and the step tensors say so, in place.

A row of the block table that still holds the same sequence gets the blocks that were added to it; only a row that holds
another one, or whose sequence changed otherwise, is written anew.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numba import carray

from kvproof_impls.paged.compiling import compiled, pointer
from kvproof_impls.paged.free_lists import num_free
from kvproof_impls.paged.layout import BLOCK, POOL, SEQUENCE, State
from kvproof_impls.paged.sequences import SHORT, TOO_NARROW, commit, make_room, release_unseen, writes_shared_tail

HELD = np.dtype([("stamp", np.int64), ("base", np.int64), ("num_blocks", np.int64)])
"""What a row of the block tables holds: the stamps of its sequence when it was written, and how many blocks."""


class Buffers(NamedTuple):
    """One set of step tensors, as arrays; the compiled side of ``buffers.StepBuffers``."""

    rows: Any
    """[max_num_seqs] int32: the sequences of the batch, by row of ``State.sequences``"""
    block_tables: Any
    """[max_num_seqs, max_blocks] int32"""
    slot_mapping: Any
    """[max_num_seqs] int64"""
    context_lens: Any
    """[max_num_seqs] int32"""
    held: Any
    """[max_num_seqs] HELD"""
    copies: Any
    """[2 * max_num_seqs] int32: source, destination, source, ..."""
    common: Any
    """[1] int64: leading blocks that all rows share; below 0 after a change of rows, not counted yet"""


@compiled
def state_at(numbers: Any) -> State:
    """The arrays whose addresses and sizes ``numbers`` starts with, in the order of ``State``."""
    max_blocks = numbers[16]
    return State(
        carray(pointer(numbers[0]), (numbers[1],), POOL),
        carray(pointer(numbers[2]), (numbers[3],), BLOCK),
        carray(pointer(numbers[4]), (numbers[5],), np.int32),
        carray(pointer(numbers[6]), (numbers[7],), np.int32),
        carray(pointer(numbers[8]), (numbers[9],), np.int32),
        carray(pointer(numbers[10]), (numbers[11],), np.int32),
        carray(pointer(numbers[12]), (numbers[13],), SEQUENCE),
        carray(pointer(numbers[14]), (numbers[15] // max_blocks, max_blocks), np.int32),
    )


@compiled
def buffers_at(numbers: Any) -> Buffers:
    """As ``state_at``, from where that ends."""
    max_blocks = numbers[16]
    return Buffers(
        carray(pointer(numbers[17]), (numbers[18],), np.int32),
        carray(pointer(numbers[19]), (numbers[20] // max_blocks, max_blocks), np.int32),
        carray(pointer(numbers[21]), (numbers[22],), np.int64),
        carray(pointer(numbers[23]), (numbers[24],), np.int32),
        carray(pointer(numbers[25]), (numbers[26],), HELD),
        carray(pointer(numbers[27]), (numbers[28],), np.int32),
        carray(pointer(numbers[29]), (numbers[30],), np.int64),
    )


def places(state: State, buffers: Buffers) -> Any:
    """[31] int64 for ``state_at`` and ``buffers_at``: address and size of each array, and the width of the tables."""
    described = [(array.ctypes.data, array.size) for array in (*state, *buffers)]
    width = (state.tables.shape[1],)
    return np.array([*chain(*described[:8]), *width, *chain(*described[8:])], np.int64)


@compiled
def step_at(numbers: Any, tokens: Any) -> int:
    """``step`` on the arrays whose places are ``numbers``: to hand over each of them takes as long as a step."""
    return step(state_at(numbers), buffers_at(numbers), tokens)


@compiled
def commit_at(numbers: Any, num_rows: int) -> None:
    state, buffers = state_at(numbers), buffers_at(numbers)
    for index in range(num_rows):
        commit(state, buffers.rows[index])


@compiled
def step(state: State, buffers: Buffers, tokens: Any) -> int:
    """Append ``tokens[i]`` to the sequence of row i, for all rows or, with SHORT or TOO_NARROW, for none; how many
    copies are to be made before this step writes."""
    short = shortage(state, buffers.rows[: tokens.size])
    if short != 0:
        return short
    num_copies, changed = 0, buffers.common[0] < 0
    for index in range(tokens.size):
        row = buffers.rows[index]
        sequence = state.sequences[row]
        if sequence.room == 0:
            num_copies += make_room(state, row, 1, buffers.copies[2 * num_copies :])
            if sequence.room == 0:
                size = state.pool[0].block_size
                sequence.next_slot = state.tables[row, sequence.length // size] * size
                sequence.room = size
        write(state, buffers, index, tokens[index])
    for index in range(tokens.size):
        row = buffers.rows[index]
        release_unseen(state, row, state.sequences[row].length - 1)
        if state.sequences[row].stamp != buffers.held[index].stamp:
            copy_table(state, buffers, index)
            changed = True
    if changed:
        buffers.common[0] = num_common(state, buffers.rows[: tokens.size])
    return num_copies


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
    """0 when every row can have its token, else SHORT or TOO_NARROW."""
    num_needed, num_tails, size = 0, 0, state.pool[0].block_size
    for row in rows:
        sequence = state.sequences[row]
        if sequence.room > 0:
            continue
        if sequence.length == sequence.num_blocks * size:
            num_needed += 1
            if sequence.num_blocks == state.tables.shape[1]:
                return TOO_NARROW
        elif writes_shared_tail(state, row):
            num_tails += 1
    if num_needed + num_tails > num_free(state) and num_needed + num_copies(state, rows) > num_free(state):
        return SHORT
    return 0


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
def copy_table(state: State, buffers: Buffers, index: int) -> None:
    """Bring row ``index`` of the block tables up to date; entries past its last block are 0."""
    row = buffers.rows[index]
    sequence, held = state.sequences[row], buffers.held[index]
    first = held.num_blocks if held.base == sequence.base else 0
    buffers.block_tables[index, first : sequence.num_blocks] = state.tables[row, first : sequence.num_blocks]
    if held.num_blocks > sequence.num_blocks:
        buffers.block_tables[index, sequence.num_blocks : held.num_blocks] = 0
    held.stamp, held.base, held.num_blocks = sequence.stamp, sequence.base, sequence.num_blocks


@compiled
def num_common(state: State, rows: Any) -> int:
    """Leading blocks that all tables name; none with a window, where the null block stands for many."""
    if rows.size == 0 or state.pool[0].window > 0:
        return 0
    for column in range(state.sequences[rows[0]].num_blocks):
        block = state.tables[rows[0], column]
        for row in rows:
            if column >= state.sequences[row].num_blocks or state.tables[row, column] != block:
                return column
    return state.sequences[rows[0]].num_blocks


@compiled
def any_twice_at(numbers: Any, num_rows: int) -> bool:
    """Whether a sequence stands in two rows of the batch."""
    state, buffers = state_at(numbers), buffers_at(numbers)
    pool = state.pool[0]
    pool.marks += 1
    for row in buffers.rows[:num_rows]:
        if state.sequences[row].mark == pool.marks:
            return True
        state.sequences[row].mark = pool.marks
    return False
