"""Our block allocator: reference counts, lazy copy-on-write and a prefix cache, in plain Python.

The design is that of PagedAttention (Kwon et al., SOSP 2023, sections 4.2 to 4.4). What is called often is kept short:
a token that fits in slots its sequence owns alone costs one dictionary look-up, a comparison and a list append.

Prefix cache: a published block is found by its *name*, the pair (node of its parent, its tokens); the node is a serial
number of the parent's content, and the root is the key (adapter, salt). The dictionary's hash of that pair is the usual
chained hash, and its comparison of the pair compares the tokens, so that a collision costs time and never content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

Copies = Sequence[tuple[int, int]]


class _Sequence:
    """A live sequence."""

    __slots__ = ("nodes", "publishes", "room", "root", "table", "tokens")

    def __init__(self, tokens: list[int], table: list[int], nodes: list[int], root: Hashable) -> None:
        self.tokens = tokens
        self.table = table
        self.nodes = nodes  # one a complete block that is known to the cache
        self.root = root
        self.publishes = True
        self.room = 0  # slots past the last token that can be written without looking at their block


class PagedAllocator:
    """Blocks on demand, shared by reference count, copied when a shared one is about to be written.

    Free blocks without content are handed out first, last freed first; then cached ones, least recently used first.
    The blocks of a freed sequence age from its end, so that no block outlives its cached parent.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self._sequences: dict[Hashable, _Sequence] = {}
        self._references = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # free, nothing worth keeping
        self._evictable: OrderedDict[int, None] = OrderedDict()  # free, still findable; oldest first
        self._cached: dict[Hashable, int] = {}  # name -> block
        self._labels: dict[int, tuple[Hashable, int]] = {}  # block -> its name, its node
        self._last_node = 0

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """Admit ``seq``; return how many leading tokens were found cached, at most ``len(tokens) - 1``.

        Raises:
            KeyError: ``seq`` is live already.
            MemoryError: too few free blocks.
        """
        if seq in self._sequences:
            raise KeyError(f"{seq!r} is allocated already")
        tokens = _plain(tokens)
        hits, nodes = self._find(tokens, (key,))
        num_fresh = self._blocks_for(len(tokens)) - len(hits)
        self._require(num_fresh + sum(self._references[block] == 0 for block in hits))
        for block in hits:
            if self._references[block] == 0:
                del self._evictable[block]
            self._references[block] += 1
        table = hits + [self._take() for _ in range(num_fresh)]
        self._sequences[seq] = state = _Sequence(list(tokens), table, nodes, (key,))
        state.room = len(table) * self.block_size - len(tokens)
        return len(hits) * self.block_size

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """Make slots for ``tokens``; return the (source, destination) blocks to copy before they are written.

        Raises:
            KeyError: ``seq`` is unknown.
            MemoryError: too few free blocks for the growth and the copy.
        """
        state = self._sequences[seq]
        if tokens.__class__ is not list:
            tokens = _plain(tokens)
        num_new = len(tokens)
        copies: Copies = () if num_new <= state.room else self._make_room(state, num_new)
        state.room -= num_new
        state.tokens += tokens
        return copies

    def reserve(self, seq: Hashable, num_tokens: int) -> Copies:
        """Make room for ``num_tokens`` more without adding any; ``truncate`` gives it back.

        Raises:
            KeyError: ``seq`` is unknown.
            ValueError: ``num_tokens`` is negative.
            MemoryError: too few free blocks.
        """
        state = self._sequences[seq]
        if num_tokens < 0:
            raise ValueError(f"can't reserve {num_tokens} tokens for {seq!r}")
        return () if num_tokens <= state.room else self._make_room(state, num_tokens)

    def free(self, seq: Hashable) -> None:
        """Give back what ``seq`` alone owns. Raises KeyError when it is unknown."""
        self._release(self._sequences.pop(seq).table)

    def fork(self, parent: Hashable, child: Hashable) -> Copies:
        """Let ``child`` share every block of ``parent``; copies nothing until one of them writes.

        Raises:
            KeyError: ``parent`` is unknown, or ``child`` is live already.
        """
        state = self._sequences[parent]
        if child in self._sequences:
            raise KeyError(f"{child!r} is allocated already")
        table = state.table[: self._blocks_for(len(state.tokens))]
        for block in table:
            self._references[block] += 1
        self._sequences[child] = twin = _Sequence(state.tokens.copy(), table, state.nodes.copy(), state.root)
        twin.publishes = state.publishes
        state.room = 0  # the last block is shared now: the next append has to look
        return ()

    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens and no more blocks than they need.

        Raises:
            KeyError: ``seq`` is unknown.
            ValueError: ``num_tokens`` is negative or more than the sequence has.
        """
        state = self._sequences[seq]
        if not 0 <= num_tokens <= len(state.tokens):
            raise ValueError(f"can't cut {seq!r} to {num_tokens} tokens: it has {len(state.tokens)}")
        num_kept = self._blocks_for(num_tokens)
        self._release(state.table[num_kept:])
        del state.table[num_kept:], state.tokens[num_tokens:], state.nodes[num_tokens // self.block_size :]
        state.room = 0  # the last block may be shared or findable: the next append has to look

    def commit(self, seq: Hashable) -> None:
        """All tokens of ``seq`` are written: publish its complete blocks. Raises KeyError when it is unknown."""
        state = self._sequences[seq]
        if not state.publishes:
            return
        size = self.block_size
        for index in range(len(state.nodes), len(state.tokens) // size):
            parent = state.nodes[-1] if state.nodes else state.root
            name = self._name(parent, state.tokens[index * size : (index + 1) * size])
            state.nodes.append(self._publish(name, state.table[index]))

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """How many leading tokens ``allocate`` would find cached now."""
        return len(self._find(_plain(tokens), (key,))[0]) * self.block_size

    def reset_prefix_cache(self) -> None:
        """Forget all that was computed so far; live sequences go on, and publish no more."""
        self._blank.extend(self._evictable)
        for container in (self._evictable, self._cached, self._labels):
            container.clear()
        for state in self._sequences.values():
            state.publishes = False

    def block_table(self, seq: Hashable) -> Sequence[int]:
        """Physical block of each logical block. Raises KeyError when ``seq`` is unknown."""
        return self._sequences[seq].table

    def num_free_blocks(self) -> int:
        """Blocks that could be handed out now, cached ones included."""
        return len(self._blank) + len(self._evictable)

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether a new sequence of ``num_tokens`` fits when nothing of it is cached. Raises ValueError below 0."""
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return self._blocks_for(num_tokens) <= self.num_free_blocks()

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _require(self, num_needed: int) -> None:
        if num_needed > self.num_free_blocks():
            raise MemoryError(f"{num_needed} blocks needed, {self.num_free_blocks()} of {self.num_blocks} free")

    def _make_room(self, state: _Sequence, num_new: int) -> Copies:
        length, table = len(state.tokens), state.table
        last, offset = divmod(length, self.block_size)
        copies_tail = offset > 0 and self._references[table[last]] > 1
        num_fresh = max(0, self._blocks_for(length + num_new) - len(table))
        self._require(num_fresh + copies_tail)
        copies: Copies = ()
        if copies_tail:
            source, table[last] = table[last], self._take()
            self._references[source] -= 1
            copies = ((source, table[last]),)
        elif offset:
            self._unpublish(table[last])  # a truncation left a cached block half used; it is about to change
        table.extend([self._take() for _ in range(num_fresh)])
        state.room = len(table) * self.block_size - length
        return copies

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            self._unpublish(block)
        self._references[block] = 1
        return block

    def _release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._labels:
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


def _plain(tokens: Any) -> list[int]:
    """Token ids as a list of ints, from a list, a tuple or an array."""
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
