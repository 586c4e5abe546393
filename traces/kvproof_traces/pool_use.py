"""Counts the slots and blocks that live sequences use, sharing included, cheaply enough to do it at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any


class PoolUse:
    """Remembers the tables of the last step, of which few change: recounting each would cost more than the replay."""

    def __init__(self, block_size: int, read_table: Callable[[Any], Sequence[int]]) -> None:
        self.block_size = block_size
        self.read_table = read_table
        self._tables: dict[Hashable, list[int]] = {}
        self._num_owners: Counter[int] = Counter()
        self._num_entries = 0

    def count(self, context_lens: Mapping[Any, int], changed: Set[Any]) -> tuple[int, int]:
        """(slots that hold a token, blocks owned); a block or slot that sequences share counts once.

        ``context_lens``: of every live sequence; each has grown by at most one token since the last call, except those
        in ``changed``, which also names the ones that got copies. A table may be longer than its context needs.
        """
        for seq in self._tables.keys() - context_lens.keys():
            self._give_up(seq)
        for seq, length in context_lens.items():
            # A table grows with the first token of a block; a commit may rewrite it when the block is full.
            if length % self.block_size <= 1 or seq in changed or seq not in self._tables:
                self._take_up(seq)
        num_owned = len(self._num_owners)
        if num_owned == self._num_entries:  # nothing is shared: lengths add up
            return sum(context_lens.values()), num_owned
        return num_owned * self.block_size - self._num_unused_slots(context_lens), num_owned

    def _take_up(self, seq: Any) -> None:
        table = list(self.read_table(seq))
        if self._tables.get(seq) != table:
            self._give_up(seq)
            self._tables[seq] = table
            self._num_owners.update(table)
            self._num_entries += len(table)

    def _give_up(self, seq: Hashable) -> None:
        table = self._tables.pop(seq, [])
        self._num_entries -= len(table)
        for block in table:
            if self._num_owners[block] == 1:
                del self._num_owners[block]
            else:
                self._num_owners[block] -= 1

    def _num_unused_slots(self, context_lens: Mapping[Any, int]) -> int:
        """Only blocks at the end of a table can have empty slots, and only while no owner has filled them."""
        num_ends: Counter[int] = Counter()
        num_used: dict[int, int] = {}
        for seq, length in context_lens.items():
            num_full, rest = divmod(length, self.block_size)
            for block in self._tables[seq][num_full:]:
                num_ends[block] += 1
                num_used[block] = max(rest, num_used.get(block, 0))
                rest = 0
        return sum(
            self.block_size - num_used[block] for block, count in num_ends.items() if count == self._num_owners[block]
        )
