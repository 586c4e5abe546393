"""Counts the slots and blocks that live sequences use, sharing included, for the price of a few additions a step."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof_traces.token_ids import MAX_TOKEN_ID, num_blocks_for

NO_BLOCKS = np.zeros(0, np.int64)


class Seen(NamedTuple):
    """A sequence as it was when its table was last read."""

    blocks: NDArray[np.int64]
    """Those of its table, each once."""
    ends: tuple[int, ...]
    """Those that it does not fill."""
    num_blocks: int
    """Length of its table."""
    num_needed: int
    """Blocks that its tokens need."""
    lead: int
    """Its tokens, less the steps counted until then."""

    @property
    def reserves(self) -> bool:
        """The table does not grow with the next block: it has that already."""
        return self.num_blocks > self.num_needed


class PoolUse:
    """Tables are read where something is shared: of a sequence that found a prefix, forked or was copied. Others are
    taken to have fresh blocks, as many as their tokens need; each grows by a token a step.

    Whether that is so is seen from the pool: blocks that are free and blocks in tables must make up what they did
    before. When they don't (a prefix is shared with a table not read yet, a reservation is longer than the tokens need,
    a commit found its block already cached, a block went astray), tables are read: first those that never were, then
    all. An allocator that errs in both numbers alike escapes; the laws are there to find it.
    """

    def __init__(
        self,
        block_size: int,
        read_table: Callable[[Any], Sequence[int]],
        num_free_blocks: Callable[[], int],
    ) -> None:
        self.block_size = block_size
        self.read_table = read_table
        self.num_free_blocks = num_free_blocks
        self._total = num_free_blocks()
        self._num_steps = 0
        self._seen: dict[Any, Seen] = {}
        self._num_owners = np.zeros(1024, np.int64)
        """Of each block, but for those that a table has grown by since it was read."""
        self._num_owned = self._num_grown = 0
        self._num_tokens = self._num_entries = 0
        self._num_growing = [0] * block_size
        """Sequences that take a block in step n, by n modulo the block size."""
        self._run_out: defaultdict[int, list[Hashable]] = defaultdict(list)
        """Reservations that are used up in a step."""
        self._num_ends: Counter[int] = Counter()
        """How many sequences have a block without filling it."""
        self._unread: set[Hashable] = set()
        self._entangled: set[Hashable] = set()
        """Sequences with a block that somebody shares without filling it."""

    def count(
        self,
        changed: Mapping[Any, int],
        gone: Iterable[Hashable] = (),
        any_changed: bool = False,
        fresh: Mapping[Any, int] = MappingProxyType({}),
    ) -> tuple[int, int]:
        """(slots that hold a token, blocks owned) after a step; a block or slot that sequences share counts once.

        Every sequence has grown by one token since the last call, but for those ``gone`` and those in ``changed``, new
        ones among them, of which the context lengths are given. Those that got copies are in ``changed``; or
        ``any_changed`` says that copies were made. ``fresh``: new ones that are not known to share anything. A table
        may be longer than its context needs.
        """
        for seq in chain(gone, changed, fresh):
            if seq in self._seen:
                self._drop(seq)
        self._step()
        for seq, length in changed.items():
            self._take(seq, length)
        for seq, length in fresh.items():
            self._take_unread(seq, length)
        num_owned = self._num_owned + self._num_grown
        if any_changed or self.num_free_blocks() + num_owned != self._total:
            num_owned = self._read_again(any_changed)
        return num_owned * self.block_size - self._num_unused_slots(), num_owned

    def _step(self) -> None:
        self._num_steps += 1
        self._num_tokens += len(self._seen)
        self._num_grown += self._num_growing[self._num_steps % self.block_size]
        if self._num_steps in self._run_out or self._entangled:
            due = {*self._run_out.pop(self._num_steps, ()), *self._entangled}
            self._take_again(due & self._seen.keys())

    def _read_again(self, every: bool) -> int:
        """The blocks that are owned."""
        self._take_again(self._unread)
        num_free = self.num_free_blocks()
        if every or num_free + self._num_owned + self._num_grown != self._total:
            self._take_again(self._seen)
            self._total = num_free + self._num_owned + self._num_grown
        return self._num_owned + self._num_grown

    def _take_again(self, seqs: Iterable[Hashable]) -> None:
        for seq in list(seqs):
            self._take(seq, self._drop(seq))

    def _take(self, seq: Hashable, length: int) -> None:
        table = as_list(self.read_table(seq))
        distinct = set(table)  # a window's null block may come often
        blocks = np.fromiter(distinct, np.int64, len(distinct))
        num_needed = num_blocks_for(length, self.block_size)
        ends = tuple(table[length // self.block_size :])
        seen = Seen(blocks, ends, len(table), num_needed, length - self._num_steps)
        self._seen[seq] = seen
        self._num_tokens += length
        self._num_entries += seen.num_blocks
        self._num_ends.update(ends)
        if self._own(blocks) < len(blocks) and any(self._num_owners[b] > 1 for b in self._num_ends.keys() & distinct):
            self._entangled.add(seq)
        if seen.reserves:
            self._run_out[seen.num_blocks * self.block_size + 1 - seen.lead].append(seq)
        else:
            self._num_growing[(1 - seen.lead) % self.block_size] += 1

    def _take_unread(self, seq: Hashable, length: int) -> None:
        """As if it had come empty, and had grown to ``length`` since."""
        seen = self._seen[seq] = Seen(NO_BLOCKS, (), 0, 0, length - self._num_steps)
        self._unread.add(seq)
        self._num_tokens += length
        self._num_grown += num_blocks_for(length, self.block_size)
        self._num_growing[(1 - seen.lead) % self.block_size] += 1

    def _drop(self, seq: Hashable) -> int:
        """The length that ``seq`` had."""
        self._entangled.discard(seq)
        self._unread.discard(seq)
        seen = self._seen.pop(seq)
        length = seen.lead + self._num_steps
        self._num_tokens -= length
        self._num_entries -= seen.num_blocks
        if len(seen.blocks):
            self._disown(seen.blocks)
        for block in seen.ends:
            self._num_ends[block] -= 1
            if not self._num_ends[block]:
                del self._num_ends[block]
        if not seen.reserves:
            self._num_growing[(1 - seen.lead) % self.block_size] -= 1
            self._num_grown -= num_blocks_for(length, self.block_size) - seen.num_needed
        return length

    def _own(self, blocks: NDArray[np.int64]) -> int:
        """One owner more for each of ``blocks``; how many had none."""
        if (size := int(blocks.max(initial=0)) + 1) > len(self._num_owners):
            self._num_owners = np.pad(self._num_owners, (0, size))
        before = self._num_owners[blocks]
        num_new = len(blocks) - int(np.count_nonzero(before))
        self._num_owners[blocks] = before + 1
        self._num_owned += num_new
        return num_new

    def _disown(self, blocks: NDArray[np.int64]) -> None:
        after = self._num_owners[blocks] - 1
        self._num_owners[blocks] = after
        self._num_owned -= len(blocks) - int(np.count_nonzero(after))

    def _num_unused_slots(self) -> int:
        """Only blocks at the end of a table can have empty slots. Those are nobody else's, once every sequence has
        written a token of its own."""
        if not self._entangled:
            return (self._num_entries + self._num_grown) * self.block_size - self._num_tokens
        lengths = {seq: seen.lead + self._num_steps for seq, seen in self._seen.items()}
        tables = {seq: as_list(self.read_table(seq)) for seq in lengths}
        return num_unused_slots(tables, lengths, self.block_size)


def num_unused_slots(tables: Mapping[Any, Sequence[int]], lengths: Mapping[Any, int], block_size: int) -> int:
    """Slots without a token in the blocks of ``tables``; a block is filled as far as any of its owners fills it."""
    num_used: Counter[int] = Counter()
    for seq, table in tables.items():
        for index, block in enumerate(table):
            num_used[block] = max(num_used[block], min(block_size, max(0, lengths[seq] - index * block_size)))
    return len(num_used) * block_size - sum(num_used.values())


def as_list(table: Any) -> list[int]:
    """A block table as plain integers, from whatever sequence the allocator has."""
    return table.tolist() if hasattr(table, "tolist") else list(table)


def longest_alone(allocator: Any) -> int:
    """Tokens of the longest sequence that an empty pool takes: there ``can_allocate`` is exact."""
    end = max(1, allocator.num_blocks * allocator.block_size)
    while end < MAX_TOKEN_ID and allocator.can_allocate(end):  # a window makes room for more than the pool holds
        end *= 2
    return bisect_left(range(end), True, key=lambda num_tokens: not allocator.can_allocate(num_tokens + 1))
