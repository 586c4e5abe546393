"""Our block allocator: reference counts, lazy copy-on-write, a prefix cache and swapping, in plain Python.

The design is that of PagedAttention (Kwon et al., SOSP 2023, sections 4.2 to 4.5). What is called often is kept short:
a token that fits in slots its sequence owns alone costs one dictionary look-up, a comparison and a list append.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from kvproof_impls.paged_python.pool import BlockPool, SequenceState, plain

if TYPE_CHECKING:
    from kvproof_impls.contract import PagedBatch

Copies = Sequence[tuple[int, int]]


class PagedAllocator(BlockPool):
    """Blocks on demand, shared by reference count, copied when a shared one is about to be written.

    The blocks of a freed sequence age from its end, so that no block outlives its cached parent. ``num_host_blocks``,
    by default as many as the pool has, take what is swapped out; host blocks are not shared.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    eviction = "lru"

    def __init__(
        self, num_blocks: int, block_size: int, num_host_blocks: int | None = None, num_reserved: int = 0
    ) -> None:
        super().__init__(num_blocks, block_size, num_reserved)
        self.num_host_blocks = num_blocks if num_host_blocks is None else num_host_blocks
        self._sequences: dict[Hashable, SequenceState] = {}
        self._swapped: dict[Hashable, SequenceState] = {}
        self._free_host_blocks = list(range(self.num_host_blocks - 1, -1, -1))

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """Admit ``seq``; return how many leading tokens were found cached, at most ``len(tokens) - 1``.

        Raises:
            KeyError: ``seq`` is live already.
            MemoryError: too few free blocks.
        """
        self._refuse_known(seq)
        tokens = plain(tokens)
        hits, nodes = self._find(tokens, (key,))
        num_fresh = self._blocks_for(len(tokens)) - len(hits)
        self._require(num_fresh + sum(self._references[block] == 0 for block in hits))
        for block in hits:
            if self._references[block] == 0:
                del self._evictable[block]
            self._references[block] += 1
        table = hits + [self._take() for _ in range(num_fresh)]
        self._sequences[seq] = state = SequenceState(list(tokens), table, nodes, (key,))
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
            tokens = plain(tokens)
        num_new = len(tokens)
        copies: Copies = () if num_new <= state.room else self._make_room(state, num_new)
        state.room -= num_new
        state.tokens += tokens
        return copies

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        """Append ``tokens[i]`` to ``seqs[i]`` for a whole decode batch, or for none of it; ``copies`` of the batch are
        to be made before its slots are written.

        Raises:
            KeyError: a sequence is unknown, or comes twice.
            ValueError: not one token a sequence.
            MemoryError: too few free blocks for all rows; the text names the rows that need one.
        """
        from kvproof_impls.paged_python import step  # here, so that an allocator alone does not import torch

        step.refuse_bad_rows(seqs, tokens)
        states = [self._sequences[seq] for seq in seqs]
        crowded = [state for state in states if not state.room]
        self._require_for_step(seqs, states, step.num_copies(self._written_tails(crowded), self._references))
        copies: list[tuple[int, int]] = []
        for state in crowded:
            copies += self._make_room(state, 1)
        for state, token in zip(states, plain(tokens), strict=True):
            state.room -= 1
            state.tokens.append(token)
        lengths = [len(state.tokens) for state in states]
        return step.step_tensors([state.table for state in states], lengths, self.block_size, copies)

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
        """Give back what ``seq`` alone owns, on the host too. Raises KeyError when it is unknown."""
        if seq in self._swapped:
            self._free_host_blocks += self._swapped.pop(seq).host_blocks
        else:
            self._release(self._sequences.pop(seq).table)

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

    def swap_out(self, seq: Hashable) -> Copies:
        """Move ``seq`` to the host; return (device block, host block) pairs to copy before anything else is written.

        Raises:
            KeyError: ``seq`` is unknown or swapped out already.
            MemoryError: too few free host blocks.
        """
        state = self._sequences[seq]
        num_needed, free = self._blocks_for(len(state.tokens)), self._free_host_blocks
        if num_needed > len(free):
            raise MemoryError(f"{num_needed} host blocks needed, {len(free)} of {self.num_host_blocks} free")
        state.host_blocks = [free.pop() for _ in range(num_needed)]
        copies = list(zip(state.table, state.host_blocks, strict=False))  # look-ahead past the last token stays behind
        self._release(state.table)
        state.table, state.nodes, state.room = [], [], 0
        self._swapped[seq] = self._sequences.pop(seq)
        return copies

    def swap_in(self, seq: Hashable) -> Copies:
        """Bring ``seq`` back; return (host block, device block) pairs to copy before anything else is written.

        Raises:
            KeyError: ``seq`` is not swapped out.
            MemoryError: too few free blocks; ``seq`` stays on the host.
        """
        state = self._swapped[seq]
        self._require(len(state.host_blocks))
        state.table = [self._take() for _ in state.host_blocks]
        copies = list(zip(state.host_blocks, state.table, strict=True))
        self._free_host_blocks += state.host_blocks
        state.host_blocks = []
        state.room = len(state.table) * self.block_size - len(state.tokens)
        self._sequences[seq] = self._swapped.pop(seq)
        return copies

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
        return len(self._find(plain(tokens), (key,))[0]) * self.block_size

    def reset_prefix_cache(self) -> None:
        """Forget all that was computed so far; live sequences go on, and publish no more."""
        self._blank.extend(self._evictable)
        for container in (self._evictable, self._cached, self._labels):
            container.clear()
        for state in (*self._sequences.values(), *self._swapped.values()):
            state.publishes = False

    def block_table(self, seq: Hashable) -> Sequence[int]:
        """Physical block of each logical block. Raises KeyError when ``seq`` is unknown."""
        return self._sequences[seq].table

    def _refuse_known(self, seq: Hashable) -> None:
        if seq in self._sequences or seq in self._swapped:
            raise KeyError(f"{seq!r} is allocated already")

    def _written_tails(self, states: list[SequenceState]) -> list[int]:
        """The partly filled blocks that the next token of each of ``states`` goes into."""
        places = [(state.table, *divmod(len(state.tokens), self.block_size)) for state in states]
        return [table[last] for table, last, offset in places if offset]

    def _require_for_step(self, seqs: Sequence[Hashable], states: list[SequenceState], num_copies: int) -> None:
        size = self.block_size
        growing = [seq for seq, state in zip(seqs, states, strict=True) if len(state.tokens) == len(state.table) * size]
        if len(growing) + num_copies > self.num_free_blocks():
            raise MemoryError(
                f"the step needs {len(growing)} blocks for {growing} and {num_copies} copies of shared last blocks, "
                f"{self.num_free_blocks()} of {self.num_blocks} free; no row was appended"
            )

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
        elif offset:
            self._unpublish(table[last])  # a truncation left a cached block half used; it is about to change
        table.extend([self._take() for _ in range(num_fresh)])
        state.room = len(table) * self.block_size - length
        return copies
