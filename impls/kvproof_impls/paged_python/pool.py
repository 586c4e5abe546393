"""The pool of our block allocator: reference counts, free blocks in the order they are handed out, the prefix cache.

A published block is found by its *name*, the pair (node of its parent, its tokens); the node is a serial number of the
parent's content, and the root is the key (adapter, salt). The dictionary's hash of that pair is the usual chained hash,
and its comparison of the pair compares the tokens, so that a collision costs time and never content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from kvproof_impls.paged_sizes import LARGEST, whole

EVICTION = ("lru", "fifo", "leaf", "all")


class SequenceState:
    """A live sequence, or one that is swapped out."""

    __slots__ = ("host_blocks", "nodes", "num_gone", "publishes", "room", "root", "table", "tokens")

    def __init__(self, tokens: list[int], table: list[int], nodes: list[int], root: Hashable) -> None:
        self.tokens = tokens
        self.table = table
        self.nodes = nodes  # one a complete block that is known to the cache
        self.root = root
        self.publishes = True
        self.num_gone = 0  # leading blocks that were given back, where a window lets them go
        self.room = 0  # slots past the last token that can be written without looking at their block
        self.host_blocks: list[int] = []  # where it is while it is swapped out


class BlockPool:
    """Blocks ``range(num_blocks)``, and behind them ``num_reserved`` that are never handed out.

    ``eviction`` says which of the blocks that nobody owns go first:

    lru   those without content, last freed first; then cached ones, least recently used first, children before parents
    fifo  in the order in which they were freed, with content or without
    leaf  those without content; then the end of a chain that was used least recently, with all of its chain that no
          other prefix shares
    all   those without content; when there are none left, everything cached is forgotten

    Raises:
        ValueError: a number out of range, or an unknown ``eviction``.
    """

    def __init__(self, num_blocks: int, block_size: int, num_reserved: int = 0, eviction: str = "lru") -> None:
        num_blocks, block_size = whole("num_blocks", num_blocks, 1), whole("block_size", block_size, 1)
        num_reserved = whole("num_reserved", num_reserved, largest=LARGEST - num_blocks)
        if eviction not in EVICTION:
            raise ValueError(f"eviction: {eviction!r} is unknown; known are {', '.join(EVICTION)}")
        self.eviction = eviction
        self.num_blocks = num_blocks
        self.pool_blocks = num_blocks + num_reserved
        self.block_size = block_size
        self._references = [0] * self.pool_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # free, nothing worth keeping
        self._evictable: OrderedDict[int, None] = OrderedDict()  # free, still findable; oldest first
        self._cached: dict[Any, int] = {}  # name -> block
        self._labels: dict[int, tuple[Any, int]] = {}  # block -> its name, its node
        self._last_node = 0
        self.num_evicted_blocks = 0

    def num_free_blocks(self) -> int:
        """Blocks that could be handed out now, cached ones included."""
        return len(self._blank) + len(self._evictable)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _require(self, num_needed: int) -> None:
        if num_needed > self.num_free_blocks():
            raise MemoryError(f"{num_needed} blocks needed, {self.num_free_blocks()} of {self.num_blocks} free")

    def _take(self) -> int:
        if not self._blank:
            self._evict()
        block = self._blank.pop()
        self._references[block] = 1
        return block

    def _evict(self) -> None:
        """Forget what at least one block holds, and make it blank."""
        if self.eviction == "all":
            for block in list(self._evictable):
                self._make_blank(block)
        elif self.eviction == "leaf":
            self._evict_leaf()
        else:
            self._make_blank(next(iter(self._evictable)))

    def _evict_leaf(self) -> None:
        ends = (block for block in self._evictable if not self._has_children(block))
        end = next(ends, None)
        if end is None:  # every chain goes on in a live sequence
            self._make_blank(next(iter(self._evictable)))
        while end is not None and end in self._evictable and not self._has_children(end):
            parent = self._parent(end)
            self._make_blank(end)
            end = parent

    def _make_blank(self, block: int) -> None:
        del self._evictable[block]
        self.num_evicted_blocks += block in self._labels
        self._unpublish(block)
        self._blank.append(block)

    def _has_children(self, block: int) -> bool:
        return block in self._labels and any(parent == self._labels[block][1] for parent, _ in self._cached)

    def _parent(self, block: int) -> int | None:
        """The block below which ``block`` bears its name, while that is findable."""
        if block not in self._labels:
            return None
        wanted = self._labels[block][0][0]
        return next((other for other, (_, node) in self._labels.items() if node == wanted), None)

    def _release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._labels or self.eviction == "fifo":
                    self._evictable[block] = None
                else:
                    self._blank.append(block)

    def _name(self, parent: Hashable, tokens: Iterable[int]) -> Hashable:
        return parent, tuple(tokens)

    def _find(self, tokens: Sequence[int], root: Hashable) -> tuple[list[int], list[int]]:
        """Cached blocks of the longest prefix that leaves a token to compute, and their nodes."""
        size, parent = self.block_size, root
        hits: list[int] = []
        nodes: list[int] = []
        for start in range(0, (len(tokens) - 1) // size * size, size):
            block = self._cached.get(self._name(parent, tokens[start : start + size]))
            if block is None:
                break
            parent = self._labels[block][1]
            hits.append(block)
            nodes.append(parent)
        return hits, nodes

    def _publish(self, name: Hashable, block: int) -> int:
        """The node of ``name``; ``block`` becomes findable unless another block with its content already is."""
        if name in self._cached:
            return self._labels[self._cached[name]][1]
        self._unpublish(block)  # it may bear a name below a parent that was evicted since
        self._last_node += 1
        self._cached[name] = block
        self._labels[block] = (name, self._last_node)
        return self._last_node

    def _unpublish(self, block: int) -> None:
        if block in self._labels:
            del self._cached[self._labels.pop(block)[0]]


def plain(tokens: Any) -> list[int]:
    """Token ids as a list of ints, from a list, a tuple or an array."""
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
