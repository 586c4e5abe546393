"""Wrong promises: room that was reserved and is not there, prompts admitted that do not fit, look-ups that hold on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.paged_python import PagedAllocator
from kvproof_impls.paged_python.allocator import tagged
from selftest.wrong.catalogue import Wrong


class ReserveDoesNothing(PagedAllocator):
    """The number of look-ahead tokens is accepted, and dropped on the way to the allocation."""

    def reserve(self, seq: Hashable, num_tokens: int) -> Any:
        return super().reserve(seq, min(num_tokens, 0))


class AppendWithinAReserveFails(PagedAllocator):
    """Tokens for which there is room already need no block, and that is asserted never to happen."""

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Any:
        state = self._sequences[seq]
        assert len(state.table) <= self._blocks_for(len(state.tokens) + len(tokens)), "no new block is needed"
        return super().append(seq, tokens)


class CanAllocateCapsThePrompt(PagedAllocator):
    """Admission asks for three blocks at most, as for a window; the allocation then takes them all."""

    def can_allocate(self, num_tokens: int) -> bool:
        return super().can_allocate(min(num_tokens, 3 * self.block_size))


class LookUpHoldsWhatItFinds(PagedAllocator):
    """A look-up pins the blocks for an admission that may never come."""

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        found = super().cached_prefix(tokens, key)
        for block in self._find(list(tokens), tagged(key))[0]:
            self._evictable.pop(block, None)
        return found


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(ReserveDoesNothing, "A7", "ai-dynamo/dynamo#8726", "look-ahead slots are promised and not made"),
        Wrong(AppendWithinAReserveFails, "A7", "vllm-project/vllm#13673", "an append that needs no block fails"),
        Wrong(CanAllocateCapsThePrompt, "A6", "vllm-project/vllm#7470", "a long prompt is admitted and does not fit"),
        Wrong(LookUpHoldsWhatItFinds, "B6", "vllm-project/vllm#44100", "an aborted request's look-up pins blocks"),
    )
}
