"""Time of an allocator's calls: admit, append a decode token, fork and free, on a pool of 65,536 tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from kvproof_impls.contract import BlockAllocator
from kvproof_suites.bench.test_decode import SWITCHED_OFF
from kvproof_suites.bench.timing import measure
from kvproof_suites.outcome import LawBroken, not_run_here
from kvproof_suites.under_test import MakeAllocator

POOL_TOKENS = 65_536
PROMPT_TOKENS = 512
MOST_SEQS = 64
"""Half the pool; an allocator that reserves more than a prompt needs admits fewer."""
BLOCK_SIZES = (16, 128)

Prompts = Mapping[int, list[int]]


@dataclass(frozen=True)
class Operation:
    """One call, made for every admitted sequence."""

    call: Callable[[BlockAllocator, int, list[int]], object]
    """(allocator, sequence, its prompt)"""
    tokens: int | None
    """Tokens that one call handles."""
    admitted: bool = True
    """Whether the sequences are there before the clock starts."""


OPERATIONS = {
    "allocate": Operation(lambda pool, seq, prompt: pool.allocate(seq, prompt), PROMPT_TOKENS, admitted=False),
    "append": Operation(lambda pool, seq, prompt: pool.append(seq, [seq]), 1),
    "fork": Operation(lambda pool, seq, prompt: pool.fork(seq, ("child", seq)), None),  # type: ignore[attr-defined]
    "free": Operation(lambda pool, seq, prompt: pool.free(seq), None),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_allocator_calls(
    make_allocator: MakeAllocator, block_size: int, operation: str, benchmark: Any, record: Callable[..., None]
) -> None:
    prompts = admissible(make_allocator, block_size)
    row: dict[str, Any] = {"group": "allocator", "implementation": make_allocator.name, "operation": operation}
    row |= {"device": "cpu", "block_size": block_size, "batch": len(prompts), "context_len": PROMPT_TOKENS}
    benchmark.group = f"allocator, {operation}"
    benchmark.extra_info.update(row)
    if not hasattr(make_allocator(1, block_size), operation):
        reason = f"has no {operation}"
        record("benchmark", **row, timed=False, reason=reason, verified=False)
        not_run_here(reason)
    chosen = OPERATIONS[operation]
    require_disjoint_tables(filled(make_allocator, block_size, prompts), prompts)
    timing = measure(
        benchmark,
        lambda pool: for_each(pool, prompts, chosen),
        [prompts],
        "cpu",
        prepare=lambda given: filled(make_allocator, block_size, given if chosen.admitted else {}),
    )
    if timing is None:
        record("benchmark", **row, timed=False, reason=SWITCHED_OFF, verified=True)
        not_run_here(SWITCHED_OFF)
    each = timing.per(len(prompts))
    figures: dict[str, Any] = each.fields()
    if chosen.tokens is not None:
        figures["ns_per_token"] = 1e9 * each.median_seconds / chosen.tokens
    benchmark.extra_info.update(figures)
    record("benchmark", **row, timed=True, verified=True, **figures)


def for_each(pool: BlockAllocator, prompts: Prompts, operation: Operation) -> None:
    call = operation.call
    for seq, prompt in prompts.items():
        call(pool, seq, prompt)


def admissible(make_allocator: MakeAllocator, block_size: int) -> Prompts:
    """As many prompts as fit, all different, so that no prefix is found cached."""
    pool, prompts = make_allocator(POOL_TOKENS // block_size, block_size), {}
    for seq in range(MOST_SEQS):
        if not pool.can_allocate(PROMPT_TOKENS):
            break
        prompts[seq] = list(range(seq * PROMPT_TOKENS, (seq + 1) * PROMPT_TOKENS))
        pool.allocate(seq, prompts[seq])
    return prompts


def filled(make_allocator: MakeAllocator, block_size: int, prompts: Prompts) -> BlockAllocator:
    pool = make_allocator(POOL_TOKENS // block_size, block_size)
    for seq, prompt in prompts.items():
        pool.allocate(seq, prompt)
    return pool


def require_disjoint_tables(pool: BlockAllocator, prompts: Prompts) -> None:
    """A figure is believed only when every prompt got blocks of its own, and all of them come back.

    Raises:
        LawBroken: too few blocks for a prompt, a block outside the pool or owned twice, or one that does not return.
    """
    owner: dict[int, int] = {}
    for seq, prompt in prompts.items():
        table = list(pool.block_table(seq))
        if len(table) * pool.block_size < len(prompt):
            raise LawBroken(f"not timed: {len(table)} blocks can't hold the {len(prompt)} tokens of sequence {seq}")
        for block in table:
            if block in owner or block not in range(pool.pool_blocks):
                raise LawBroken(f"not timed: block {block} of sequence {seq} is outside the pool or owned twice")
            owner[block] = seq
    for seq in prompts:
        pool.free(seq)
    if pool.num_free_blocks() != pool.num_blocks:
        raise LawBroken(
            f"not timed: {pool.num_free_blocks()} of {pool.num_blocks} blocks are free after every sequence was freed"
        )
