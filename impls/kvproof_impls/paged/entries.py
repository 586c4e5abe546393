"""What Python calls of the compiled code: the functions of ``sequences`` and ``step`` by the places of their arrays."""

from __future__ import annotations

from typing import Any

from kvproof_impls.paged import sequences
from kvproof_impls.paged.compiling import compiled
from kvproof_impls.paged.layout import LARGEST
from kvproof_impls.paged.places import buffers_at, state_at
from kvproof_impls.paged.step import step


@compiled
def find(numbers: Any, tokens: Any, fields: Any, root: int, hits: Any) -> int:
    return sequences.find(state_at(numbers), tokens, fields, root, hits)


@compiled
def allocate(numbers: Any, row: int, tokens: Any, fields: Any, root: int, num_spare: int, finds: bool) -> int:
    return sequences.allocate(state_at(numbers), row, tokens, fields, root, num_spare, finds)


@compiled
def append(numbers: Any, row: int, tokens: Any, copies: Any) -> int:
    return sequences.append(state_at(numbers), row, tokens, copies)


@compiled
def reserve(numbers: Any, row: int, num_tokens: int, copies: Any) -> int:
    return sequences.reserve(state_at(numbers), row, num_tokens, copies)


@compiled
def release(numbers: Any, row: int) -> None:
    sequences.cut(state_at(numbers), row, 0)


@compiled
def truncate(numbers: Any, row: int, num_tokens: int) -> None:
    sequences.truncate(state_at(numbers), row, num_tokens)


@compiled
def fork(numbers: Any, parent: int, child: int) -> None:
    sequences.fork(state_at(numbers), parent, child)


@compiled
def commit(numbers: Any, row: int) -> None:
    sequences.commit(state_at(numbers), row)


@compiled
def append_step(numbers: Any, tokens: Any) -> int:
    return step(state_at(numbers), buffers_at(numbers), tokens)


@compiled
def commit_step(numbers: Any, num_rows: int) -> None:
    state, buffers = state_at(numbers), buffers_at(numbers)
    for index in range(num_rows):
        sequences.commit(state, buffers.rows[index])


@compiled
def any_twice(numbers: Any, num_rows: int) -> bool:
    """Whether a sequence stands in two rows of the batch."""
    state, buffers = state_at(numbers), buffers_at(numbers)
    pool = state.pool[0]
    pool.marks = pool.marks % LARGEST + 1  # never 0, which is what a new row has
    for row in buffers.rows[:num_rows]:
        if state.sequences[row].mark == pool.marks:
            return True
        state.sequences[row].mark = pool.marks
    return False
