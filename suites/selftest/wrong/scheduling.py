"""Wrong moves of a sequence in time: rolled back, preempted, in flight."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvproof_impls.paged_python import PagedAllocator
from selftest.wrong.catalogue import Wrong


class TruncateKeepsTheBlock(PagedAllocator):
    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        state = self._sequences[seq]
        if not 0 <= num_tokens <= len(state.tokens):
            raise ValueError(num_tokens)
        del state.tokens[num_tokens:], state.nodes[num_tokens // self.block_size :]
        state.room = 0


class MoveABlockWhileItIsWritten(PagedAllocator):
    def free(self, seq: Hashable) -> None:
        super().free(seq)
        for state in self._sequences.values():
            if self._blank and state.table and self._references[state.table[-1]] == 1:
                old, state.table[-1] = state.table[-1], self._take()
                self._release([old])


class BlockAtTheSeamIsFreedTwice(PagedAllocator):
    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        state = self._sequences[seq]
        seam = state.table[num_tokens // self.block_size : self._blocks_for(num_tokens)]
        super().truncate(seq, num_tokens)
        self._release([block for block in seam if len(state.tokens) % self.block_size and self._references[block]])


class AppendKeepsAReserve(PagedAllocator):
    """The last free block is kept for later, and the only request that is left waits for it."""

    def _make_room(self, state: Any, num_new: int) -> Any:
        needs_block = self._blocks_for(len(state.tokens) + num_new) > len(state.table)
        if needs_block and self.num_free_blocks() <= 1:
            raise MemoryError("the last block is a reserve")
        return super()._make_room(state, num_new)


class SwapInWantsRoomToGrow(PagedAllocator):
    """As many blocks again as the sequence has must be free, and never are."""

    def swap_in(self, seq: Hashable) -> Any:
        if 2 * len(self._swapped[seq].host_blocks) > self.num_blocks + 1:
            raise MemoryError("no room to grow")
        return super().swap_in(seq)


class TruncateToZeroIsNothing(PagedAllocator):
    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        super().truncate(seq, num_tokens or len(self._sequences[seq].tokens))


class TruncateIsOffByOne(PagedAllocator):
    """Positions jump by one after a rollback."""

    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        is_cut = num_tokens < len(self._sequences[seq].tokens)
        super().truncate(seq, num_tokens + 1 if is_cut and num_tokens >= 0 else num_tokens)


class TruncateForgetsThatTheTailIsShared(PagedAllocator):
    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        super().truncate(seq, num_tokens)
        state = self._sequences[seq]
        state.room = len(state.table) * self.block_size - len(state.tokens)


WRONG: dict[str, Wrong] = {
    "truncate_keeps_the_block": Wrong(
        TruncateKeepsTheBlock, "D4", "huggingface/transformers#47433", "rejected tokens leave their blocks behind"
    ),
    "move_a_block_while_it_is_written": Wrong(
        MoveABlockWhileItIsWritten,
        "D5",
        "ggml-org/llama.cpp#12253",
        "the write in flight lands where the sequence no longer reads",
    ),
    "block_at_the_seam_is_freed_twice": Wrong(
        BlockAtTheSeamIsFreedTwice, "A9", "sgl-project/sglang#38941", "both sides of a cut inside a block free it"
    ),
    "append_keeps_a_reserve": Wrong(
        AppendKeepsAReserve, "D3", "ours", "a request that needs the whole pool is preempted for ever"
    ),
    "swap_in_wants_room_to_grow": Wrong(
        SwapInWantsRoomToGrow, "D3", "vllm-project/vllm#546", "a large sequence never comes back from the host"
    ),
    "truncate_to_zero_is_nothing": Wrong(
        TruncateToZeroIsNothing, "D4", "huggingface/transformers#47433", "a rollback to nothing keeps everything"
    ),
    "truncate_is_off_by_one": Wrong(
        TruncateIsOffByOne, "D4", "ggml-org/llama.cpp#26478", "the position after a rollback is one too far"
    ),
    "truncate_forgets_that_the_tail_is_shared": Wrong(
        TruncateForgetsThatTheTailIsShared, "C1", "ours", "a branch that is cut writes into the block that both read"
    ),
}
