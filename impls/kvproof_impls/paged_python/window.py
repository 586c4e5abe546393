"""Our block allocator for models with a sliding window: blocks that no query can see any more are given back.

The table keeps its length, since position t stands at entry t // block_size; where a block was given back it names the
*null block*, a reserved id behind the usable ones that is never owned, counted or written. Rolling back into what was
given back is impossible, and a sequence with holes is not worth swapping: both capabilities are absent.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvproof_impls.contract import Copies
from kvproof_impls.paged_python.batched import PagedAllocator
from kvproof_impls.paged_python.pool import SequenceState
from kvproof_impls.paged_sizes import whole

if TYPE_CHECKING:
    from kvproof_impls.contract import PagedBatch


class WindowedAllocator(PagedAllocator):
    """``window`` counts visible positions, the query's own included.

    Raises:
        ValueError: ``window`` or ``num_reserved`` below 1, or another number out of range.
    """

    truncate = swap_out = swap_in = None  # type: ignore[assignment]

    def __init__(self, num_blocks: int, block_size: int, window: int, **options: Any) -> None:
        self.window = whole("window", window, 1)
        num_reserved = whole("num_reserved", options.pop("num_reserved", 1), 1)
        super().__init__(num_blocks, block_size, num_reserved=num_reserved, **options)
        self.null_block = self.num_blocks

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """As without a window; then blocks that the first of ``tokens`` can't see are given back."""
        first = len(self._sequences[seq].tokens)
        copies = super().append(seq, tokens)
        self._release_unseen(self._sequences[seq], first)
        return copies

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        """As without a window; the batch names the null block where its rows see nothing, which makes none common."""
        batch = replace(super().append_step(seqs, tokens), common_prefix_blocks=0)
        for row, seq in enumerate(seqs):
            state = self._sequences[seq]
            self._release_unseen(state, len(state.tokens) - 1)
            batch.block_tables[row, : state.num_gone] = self.null_block
        return batch

    def _release_unseen(self, state: SequenceState, first_query: int) -> None:
        """Give back the blocks that end before what a query at position ``first_query`` sees.

        The first query, not the last token handed out: a chunk's first query sees further back than its last.
        """
        num_unseen = max(0, first_query - self.window + 1) // self.block_size
        num_gone = state.num_gone
        if num_unseen <= num_gone:
            return
        unseen = state.table[num_gone:num_unseen]
        state.table[num_gone:num_unseen] = [self.null_block] * len(unseen)
        state.num_gone = num_unseen
        if num_unseen > len(state.nodes):
            state.publishes = False  # a block that was never published is missing from its chain
        self._release(unseen)

    def _release(self, blocks: list[int]) -> None:
        super()._release([block for block in blocks if block != self.null_block])
