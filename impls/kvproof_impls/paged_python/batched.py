"""The batched step and swapping of our plain Python allocator, on top of its single calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from kvproof_impls.contract import Copies
from kvproof_impls.paged_python.allocator import SingleCalls
from kvproof_impls.paged_python.pool import SequenceState, plain
from kvproof_impls.paged_sizes import whole

if TYPE_CHECKING:
    from kvproof_impls.contract import PagedBatch


class PagedAllocator(SingleCalls):
    """Blocks on demand, shared by reference count, copied when a shared one is about to be written.

    The blocks of a freed sequence age from its end, so that no block outlives its cached parent. ``num_host_blocks``,
    by default as many as the pool has, take what is swapped out; host blocks are not shared. Other arguments: see
    ``SingleCalls``.
    """

    rebuilds_step = True

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int | None = None, **options: Any) -> None:
        super().__init__(num_blocks, block_size, **options)
        self.num_host_blocks = self.num_blocks if num_host_blocks is None else whole("num_host_blocks", num_host_blocks)
        self._swapped: dict[Hashable, SequenceState] = {}
        self._free_host_blocks = list(range(self.num_host_blocks - 1, -1, -1))

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

    def commit_step(self, seqs: Sequence[Hashable]) -> None:
        """``commit`` of each of ``seqs``, or, with a KeyError, of none: when one is unknown or comes twice."""
        if len(set(seqs)) != len(seqs):
            raise KeyError(f"commit_step: a sequence comes twice in {list(seqs)}")
        if unknown := [seq for seq in seqs if seq not in self._sequences]:
            raise KeyError(unknown[0])
        for seq in seqs:
            self.commit(seq)

    def free(self, seq: Hashable) -> None:
        """Give back what ``seq`` alone owns, on the host too. Raises KeyError when it is unknown."""
        if seq in self._swapped:
            self._free_host_blocks += self._swapped.pop(seq).host_blocks
        else:
            super().free(seq)

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

    def reset_prefix_cache(self) -> None:
        """Forget all that was computed so far; live sequences go on, and publish no more."""
        super().reset_prefix_cache()
        for state in self._swapped.values():
            state.publishes = False

    def _refuse_known(self, seq: Hashable) -> None:
        super()._refuse_known(seq)
        if seq in self._swapped:
            raise KeyError(f"{seq!r} is allocated already, and swapped out")

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
