"""An allocator's calls in a contest: what is made ready off the clock, and what must hold before a time is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof_impls.contract import BlockAllocator
from kvproof_suites.bench.contests import Entrant, NotTimed, Prepared, Ready
from kvproof_suites.bench.planning import MOST_SEQS
from kvproof_suites.bench.race import Contestant
from kvproof_suites.bench.timing import Timing
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import MakeAllocator

POOL_TOKENS = 65_536
PROMPT_TOKENS = 512

Prompts = Mapping[int, list[int]]


@dataclass(frozen=True)
class Operation:
    """One call for every admitted sequence, or one for all."""

    call: Callable[[Any, Prompts], object]
    tokens: int | None
    """Tokens that are handled for each sequence."""
    needs: str
    """The method without which it is not there."""
    admitted: str = "running"
    """What became of the prompts before the clock starts: running, finished, or none (they are new)."""


def each(call: Callable[[Any, int, list[int]], object]) -> Callable[[Any, Prompts], None]:
    def for_each(pool: Any, prompts: Prompts) -> None:
        for seq, prompt in prompts.items():
            call(pool, seq, prompt)

    return for_each


allocate_each = each(lambda pool, seq, prompt: pool.allocate(seq, prompt))

OPERATIONS = {
    "allocate": Operation(allocate_each, PROMPT_TOKENS, "allocate", "none"),
    "append": Operation(each(lambda pool, seq, prompt: pool.append(seq, [seq])), 1, "append"),
    "append_step": Operation(lambda pool, prompts: pool.append_step(list(prompts), list(prompts)), 1, "append_step"),
    "fork": Operation(each(lambda pool, seq, prompt: pool.fork(seq, ("child", seq))), None, "fork"),
    "free": Operation(each(lambda pool, seq, prompt: pool.free(seq)), None, "free"),
    "prefix_hit": Operation(allocate_each, PROMPT_TOKENS, "cached_prefix", "finished"),
}


@dataclass(frozen=True)
class AllocatorCalls:
    makers: Mapping[str, MakeAllocator]

    def prepare(self, entrants: Sequence[Entrant]) -> Iterator[tuple[Entrant, Prepared]]:
        for name, cell in entrants:
            make, chosen = self.makers[name], OPERATIONS[cell.operation]
            try:
                yield (name, cell), self._ready((name, cell), make, chosen)
            except Exception as error:  # of the implementation: its own row tells it
                yield (name, cell), error

    def _ready(self, entrant: Entrant, make: MakeAllocator, chosen: Operation) -> Prepared:
        cell = entrant[1]
        if not hasattr(make(1, cell.block_size), chosen.needs):
            return NotTimed(f"has no {chosen.needs}")
        prompts = admissible(make, cell.block_size)
        require_disjoint_tables(filled(make, cell.block_size, prompts), prompts)
        if chosen.admitted == "finished" and not finished(make, cell.block_size, prompts).cached_prefix(prompts[0]):
            return NotTimed("finds no prompt again that was computed and freed just before")
        given = (make, cell.block_size, prompts)
        states: dict[str, Callable[[], Any]] = {
            "none": lambda: make(POOL_TOKENS // cell.block_size, cell.block_size),
            "running": lambda: filled(*given),
            "finished": lambda: finished(*given),
        }
        state = states[chosen.admitted]
        contestant = Contestant(lambda pool: chosen.call(pool, prompts), [None], lambda _: state())

        def figures(timings: Mapping[Any, Timing]) -> dict[str, Any]:
            per_sequence = timings[entrant].per(len(prompts))
            told = {**per_sequence.fields(), "batch": len(prompts), "context_len": PROMPT_TOKENS}
            if chosen.tokens is not None:
                told["ns_per_token"] = 1e9 * per_sequence.median_seconds / chosen.tokens
            return told

        return Ready(contestant, figures)


def admissible(make: MakeAllocator, block_size: int) -> Prompts:
    """As many prompts as fit, all different, so that no prefix is found cached."""
    pool, prompts = make(POOL_TOKENS // block_size, block_size), {}
    for seq in range(MOST_SEQS):
        if not pool.can_allocate(PROMPT_TOKENS):
            break
        prompts[seq] = list(range(seq * PROMPT_TOKENS, (seq + 1) * PROMPT_TOKENS))
        pool.allocate(seq, prompts[seq])
    return prompts


def filled(make: MakeAllocator, block_size: int, prompts: Prompts) -> BlockAllocator:
    pool = make(POOL_TOKENS // block_size, block_size)
    for seq, prompt in prompts.items():
        pool.allocate(seq, prompt)
    return pool


def finished(make: MakeAllocator, block_size: int, prompts: Prompts) -> Any:
    """All prompts were computed and freed, so that their blocks can be found again."""
    pool: Any = filled(make, block_size, prompts)
    for seq in prompts:
        if hasattr(pool, "commit"):
            pool.commit(seq)
        pool.free(seq)
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
