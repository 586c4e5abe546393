"""A block manager as teaching texts show it: enough to explain paging, with the omissions such code has.

Three things are left out, each easy to overlook; ``textbook.toml`` names the laws they break.

1. ``allocate`` takes blocks one by one and, when the pool runs dry half way, keeps those it has taken.
2. ``allocate`` for an id that is live already replaces its table: the old blocks belong to nobody from then on.
3. ``append`` writes into the last block even when ``fork`` has shared it: such texts show how to copy on write, and
   then a serving loop that never does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class TextbookAllocator:
    """A free list, reference counts, and a table a sequence."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self._free_list = list(range(num_blocks))
        self._references = [0] * num_blocks
        self._tables: dict[Hashable, list[int]] = {}
        self._lengths: dict[Hashable, int] = {}

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """Take a block for each ``block_size`` tokens of the prompt; nothing is ever found cached."""
        self._tables[seq] = [self._take() for _ in range(self._blocks_for(len(tokens)))]
        self._lengths[seq] = len(tokens)
        return 0

    def append(self, seq: Hashable, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Grow the table when the last block is full; never asks for a copy."""
        table, length = self._tables[seq], self._lengths[seq] + len(tokens)
        num_missing = self._blocks_for(length) - len(table)
        if num_missing > len(self._free_list):
            raise MemoryError(f"{num_missing} blocks needed, {len(self._free_list)} free")
        table.extend(self._take() for _ in range(num_missing))
        self._lengths[seq] = length
        return []

    def fork(self, parent: Hashable, child: Hashable) -> list[tuple[int, int]]:
        """Let ``child`` read the blocks of ``parent``."""
        table = self._tables[parent]
        if child in self._tables:
            raise KeyError(child)
        for block in table:
            self._references[block] += 1
        self._tables[child], self._lengths[child] = list(table), self._lengths[parent]
        return []

    def free(self, seq: Hashable) -> None:
        """Drop a reference to each block; the last one returns it."""
        for block in self._tables.pop(seq):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free_list.append(block)
        del self._lengths[seq]

    def block_table(self, seq: Hashable) -> Sequence[int]:
        """Physical block of each logical block."""
        return self._tables[seq]

    def num_free_blocks(self) -> int:
        """Length of the free list."""
        return len(self._free_list)

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether the free list is long enough."""
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return self._blocks_for(num_tokens) <= len(self._free_list)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _take(self) -> int:
        if not self._free_list:
            raise MemoryError("no free block is left")
        block = self._free_list.pop()
        self._references[block] = 1
        return block
