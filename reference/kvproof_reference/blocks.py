"""What the reference allocator keeps for a block of the pool and for a live sequence, and how contents are hashed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

ROOT_HASH = 0
"""Parent hash of a first block."""


def chain_hash(parent_hash: int, tokens: tuple[int, ...], key: Hashable, block_size: int) -> int:
    """Hash of a complete block and of all before it."""
    return hash((parent_hash, tokens, key, block_size))


@dataclass
class Block:
    """One block of the pool; ``hash`` and what follows it are set while the block is findable."""

    id: int
    num_references: int = 0
    """Tables that hold it."""
    hash: int | None = None
    parent: int | None = None
    """Block that holds the tokens just before; None: a first block."""
    tokens: tuple[int, ...] = ()
    key: Hashable = ()

    def publish(self, digest: int, parent: int | None, tokens: tuple[int, ...], key: Hashable) -> None:
        self.hash, self.parent, self.tokens, self.key = digest, parent, tokens, key

    def unpublish(self) -> None:
        self.hash, self.parent, self.tokens, self.key = None, None, (), ()


@dataclass
class SequenceState:
    """One live sequence: tokens, block table, and how much of it can be found by others."""

    tokens: list[int]
    table: list[int]
    key: Hashable
    num_findable: int
    """Leading blocks of the table that this sequence hit or published."""
    publishes: bool = True
    """False for what was live when the prefix cache was reset: its K and V are no longer what others want to find."""

    def copy(self) -> SequenceState:
        return SequenceState(list(self.tokens), list(self.table), self.key, self.num_findable, self.publishes)
