"""Where the arrays are, as one array of numbers: to hand over each of fifteen arrays takes longer than a whole step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from kvproof_impls.paged.compiling import compiled, pointer
from kvproof_impls.paged.layout import BLOCK, POOL, SEQUENCE, State

HELD = np.dtype([("stamp", np.int64), ("base", np.int64), ("num_blocks", np.int64)])
"""What a row of the block tables holds: the stamps of its sequence when it was written, and how many blocks."""

LAYOUT = [POOL, BLOCK, *[np.dtype(np.int32)] * 4, SEQUENCE, np.dtype(np.int32)]
"""Of the arrays of ``State``; compiled code sees no type of theirs but these."""


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
    """[2] int64: leading blocks that all rows share, and the number of rows of which that was counted"""


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


def places_of(state: State, buffers: Buffers | None = None) -> Any:
    """[17 or 31] int64 for ``state_at`` and ``buffers_at``: address and size of each array, then the tables' width.

    Raises:
        TypeError: an array of another type than compiled code takes it for.
    """
    if [array.dtype for array in state] != LAYOUT:
        raise TypeError("these arrays are of another version of this allocator; make them anew")
    described = [number for array in state for number in (array.ctypes.data, array.size)]
    described.append(state.tables.shape[1])
    for array in buffers or ():
        described += (array.ctypes.data, array.size)
    return np.array(described, np.int64)
