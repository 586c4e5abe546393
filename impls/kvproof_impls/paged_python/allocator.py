"""Our block allocator: reference counts, lazy copy-on-write and a prefix cache, in plain Python.

The design is that of PagedAttention (Kwon et al., SOSP 2023, sections 4.2 to 4.5). What is called often is kept short:
a token that fits in slots its sequence owns alone costs one dictionary look-up, a comparison and a list append.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.contract import Copies
from kvproof_impls.counters import Counters
from kvproof_impls.paged_python.pool import BlockPool, SequenceState, plain
from kvproof_impls.paged_sizes import LARGEST, share, whole

Item = tuple[int, int, Hashable]
"""(position of its first token, number of tokens, identity) of what stands behind placeholder tokens, as an image."""


class SingleCalls(BlockPool):
    """The contract's single calls; ``PagedAllocator`` adds the batched step and swapping.

    Args:
        watermark: share of the blocks that an admission must leave free while another sequence lives.
        prefix_caching: without it nothing is ever published.
        eviction, num_reserved: see ``BlockPool``.

    Raises:
        ValueError: a number out of range, or an unknown ``eviction``.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_reserved: int = 0,
        eviction: str = "lru",
        watermark: float = 0.0,
        prefix_caching: bool = True,
    ) -> None:
        super().__init__(num_blocks, block_size, num_reserved, eviction)
        self.counters = Counters()
        self._num_spare = int(share("watermark", watermark) * self.num_blocks)
        self._caches = prefix_caching
        self._sequences: dict[Hashable, SequenceState] = {}
        self._preempted: set[Hashable] = set()

    def allocate(
        self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = (), items: Sequence[Item] = ()
    ) -> int:
        """Admit ``seq``; return how many leading tokens were found cached, at most ``len(tokens) - 1``.

        Raises:
            KeyError: ``seq`` is live already.
            ValueError: an item outside the tokens.
            MemoryError: too few free blocks.
        """
        self._refuse_known(seq)
        tokens, root = with_items(plain(tokens), items), tagged(key)
        hits, nodes = self._find(tokens, root)
        num_fresh = self._blocks_for(len(tokens)) - len(hits)
        self._require(num_fresh + sum(self._references[block] == 0 for block in hits) + self._spare())
        for block in hits:
            if self._references[block] == 0:
                del self._evictable[block]
            self._references[block] += 1
        table = hits + [self._take() for _ in range(num_fresh)]
        self._sequences[seq] = state = SequenceState(list(tokens), table, nodes, root)
        state.publishes = self._caches
        state.room = len(table) * self.block_size - len(tokens)
        self.counters.admitted(len(tokens), len(hits) * self.block_size, again=seq in self._preempted)
        self._preempted.discard(seq)
        return len(hits) * self.block_size

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """Make slots for ``tokens``; return the (source, destination) blocks to copy before they are written.

        Raises:
            KeyError: ``seq`` is unknown.
            MemoryError: too few free blocks for the growth and the copy.
        """
        state = self._sequences[seq]
        if tokens.__class__ is not list:
            tokens = plain(tokens)
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
        num_tokens = whole("num_tokens to reserve", num_tokens, largest=None)
        return () if num_tokens <= state.room else self._make_room(state, num_tokens)

    def free(self, seq: Hashable) -> None:
        """Give back what ``seq`` alone owns. Raises KeyError when it is neither live nor preempted."""
        if seq in self._sequences:
            self._release(self._sequences.pop(seq).table)
        else:
            self._preempted.remove(seq)

    def preempt(self, seq: Hashable) -> None:
        """As ``free``, of a sequence that will be admitted again under its id: what is found then is no hit.

        Raises KeyError when ``seq`` is unknown.
        """
        self._release(self._sequences.pop(seq).table)
        self._preempted.add(seq)
        self.counters.num_preemptions += 1

    def fork(self, parent: Hashable, child: Hashable) -> Copies:
        """Let ``child`` share every block of ``parent``; copies nothing until one of them writes.

        Raises:
            KeyError: ``parent`` is unknown, or ``child`` is live already.
        """
        state = self._sequences[parent]
        self._refuse_known(child)
        table = state.table[: self._blocks_for(len(state.tokens))]
        for block in table:
            self._references[block] += 1
        self._sequences[child] = twin = SequenceState(state.tokens.copy(), table, state.nodes.copy(), state.root)
        twin.publishes, twin.num_gone = state.publishes, state.num_gone
        self._preempted.discard(child)
        state.room = 0  # the last block is shared now: the next append has to look
        return ()

    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens and no more blocks than they need.

        Raises:
            KeyError: ``seq`` is unknown.
            ValueError: ``num_tokens`` is negative or more than the sequence has.
        """
        state, num_tokens = self._sequences[seq], whole("num_tokens to keep", num_tokens, largest=None)
        if num_tokens > len(state.tokens):
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

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = (), items: Sequence[Item] = ()) -> int:
        """How many leading tokens ``allocate`` would find cached now."""
        return len(self._find(with_items(plain(tokens), items), tagged(key))[0]) * self.block_size

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

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether a new sequence of ``num_tokens`` fits when nothing of it is cached. Raises ValueError below 0."""
        num_needed = self._blocks_for(whole("num_tokens to allocate", num_tokens, largest=None))
        return num_needed + self._spare() <= self.num_free_blocks() and num_needed * self.block_size <= LARGEST

    def _spare(self) -> int:
        return self._num_spare if self._sequences else 0

    def _refuse_known(self, seq: Hashable) -> None:
        if seq in self._sequences:
            raise KeyError(f"{seq!r} is allocated already")

    def _make_room(self, state: SequenceState, num_new: int) -> Copies:
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
            self.counters.num_copies += 1
        elif offset:
            self._unpublish(table[last])  # a truncation left a cached block half used; it is about to change
        table.extend([self._take() for _ in range(num_fresh)])
        state.room = len(table) * self.block_size - length
        return copies


def with_items(tokens: list[Any], items: Sequence[Item]) -> list[Any]:
    """``tokens`` in which those of an item stand for it as well, so that two images with one placeholder differ.

    Raises:
        ValueError: an item outside the tokens.
    """
    spelled = list(tokens) if items else tokens
    for first, length, identity in items:
        first, length = whole("position of an item", first), whole("num_tokens of an item", length, 1)
        if first + length > len(tokens):
            raise ValueError(f"an item of {length} tokens at {first} lies outside the {len(tokens)} tokens")
        for position in range(first, first + length):
            spelled[position] = (spelled[position], first, length, tagged(identity))
    return spelled


def tagged(value: Hashable) -> Hashable:
    """``1``, ``1.0`` and ``True`` are equal to Python, and are different keys."""
    return tuple(map(tagged, value)) if isinstance(value, tuple) else (type(value), value)
