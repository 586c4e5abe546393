"""Wrong moves of a sequence in time: rolled back, preempted, in flight."""

from __future__ import annotations

from collections.abc import Hashable

from kvproof_impls.paged import PagedAllocator
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
}
