"""Rows into slots of a pool, and blocks onto blocks of it: bytes are moved, in runs as long as the strides allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from kvproof_kernels.cpu.checks import check_copies, check_write
from kvproof_kernels.cpu.compiling import compiled
from kvproof_kernels.cpu.memory import copy_bytes
from kvproof_kernels.cpu.problem import in_bytes
from kvproof_kernels.cpu.threads import num_threads, run_on_all

BYTES_A_THREAD = 2**20
"""Waking a thread takes as long as moving some hundred kilobytes."""


class Runs(NamedTuple):
    """A rectangle of memory: ``outer`` times ``inner`` runs of ``num_bytes``, so many bytes apart."""

    num_outer: int
    outer: int
    num_inner: int
    inner: int
    num_bytes: int


def runs_of(tensor: Tensor) -> Runs:
    """Of a tensor [outer, inner, dim] whose last stride is 1; dims without gaps between them are one run."""
    size = tensor.element_size()
    (num_outer, num_inner, dim), (outer, inner, _) = tensor.shape, tensor.stride()
    if inner == dim or num_inner == 1:
        num_inner, dim = 1, num_inner * dim
        if outer == dim or num_outer == 1:
            num_outer, dim = 1, num_outer * dim
    return Runs(num_outer, outer * size, num_inner, inner * size, dim * size)


def write_rows(name: str, rows: Tensor, pool: Tensor, slot_mapping: Tensor) -> None:
    """Store ``rows`` [num_tokens, num_kv_heads, dim] in ``slot_mapping`` [num_tokens] int64 of ``pool`` [num_blocks,
    block_size, num_kv_heads, dim], both of one dtype and any strides but the last; slot -1 is nowhere.

    Raises:
        ValueError: shapes, dtypes, strides or devices that don't fit, by ``name``, or a slot outside the pool.
    """
    check_write(name, rows, pool, slot_mapping)
    slots, (num_blocks, block_size, num_heads, dim) = slot_mapping.contiguous().numpy(), pool.shape
    if (token := first_outside(slots, num_blocks * block_size)) >= 0:
        raise ValueError(
            f"slot_mapping {list(slot_mapping.shape)}: slot {slots[token]} of token {token} is outside the pool of "
            f"{num_blocks} blocks of {block_size}"
        )
    if rows.stride(1) == pool.stride(2) == dim:
        num_heads, dim = 1, num_heads * dim
    num_bytes, places = pool.element_size() * dim, (in_bytes(rows[None]), in_bytes(pool))
    parts = max(1, min(num_threads(), rows.nbytes // BYTES_A_THREAD))
    ends = [len(slots) * part // parts for part in range(parts + 1)]
    run_on_all(
        lambda part: store_rows(slots, ends[part], ends[part + 1], *places, block_size, num_heads, num_bytes), parts
    )


@compiled
def first_outside(slots: Any, num_slots: Any) -> Any:
    """The first token whose slot is neither -1 nor in the pool, or -1."""
    for token in range(len(slots)):
        if slots[token] < -1 or slots[token] >= num_slots:
            return token
    return -1


@compiled
def store_rows(
    slots: Any, first: Any, end: Any, rows: Any, pool: Any, block_size: Any, num_heads: Any, num_bytes: Any
) -> None:
    for i in range(first, end):
        if slots[i] >= 0:
            place = pool.address + slots[i] // block_size * pool.block + slots[i] % block_size * pool.token
            for head in range(num_heads):
                copy_bytes(place + head * pool.head, rows.address + i * rows.token + head * rows.head, num_bytes)


def copy_blocks(pool: Tensor, copies: Sequence[tuple[int, int]]) -> None:
    """Copy (source, destination) blocks of ``pool`` [num_blocks, block_size, num_kv_heads, dim], of any strides but the
    last.

    Raises:
        ValueError: a block outside the pool, or a destination that is another pair's source or destination.
    """
    check_copies(pool, copies)
    pairs = np.array(copies, np.int64).reshape(-1, 2)
    storage = pool[0] if pool.stride(1) >= pool.stride(2) else pool[0].transpose(0, 1)
    runs, block = runs_of(storage), pool.element_size() * pool.stride(0)
    copy_pairs(pairs, pool.data_ptr(), block, runs)


@compiled
def copy_pairs(pairs: Any, pool: Any, block: Any, runs: Any) -> None:
    for i in range(len(pairs)):
        source, target = pool + pairs[i, 0] * block, pool + pairs[i, 1] * block
        for outer in range(runs.num_outer):
            for inner in range(runs.num_inner):
                offset = outer * runs.outer + inner * runs.inner
                copy_bytes(target + offset, source + offset, runs.num_bytes)
