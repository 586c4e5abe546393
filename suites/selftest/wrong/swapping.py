"""Wrong swaps: what is left behind, comes back elsewhere, or never comes back."""

from __future__ import annotations

from collections.abc import Hashable

from kvproof_impls.contract import Copies
from kvproof_impls.paged_python import PagedAllocator
from selftest.wrong.catalogue import Wrong


class SwapLeavesThePartialBlock(PagedAllocator):
    def swap_out(self, seq: Hashable) -> Copies:
        is_partial = len(self._sequences[seq].tokens) % self.block_size if seq in self._sequences else 0
        copies = super().swap_out(seq)
        return copies[:-1] if is_partial else copies


class SwapInBackwards(PagedAllocator):
    def swap_in(self, seq: Hashable) -> Copies:
        copies = super().swap_in(seq)
        self._sequences[seq].table.reverse()
        return copies


class SwapInWithoutTheLastToken(PagedAllocator):
    """The token that was sampled before the preemption is taken for one that is still to come."""

    def swap_in(self, seq: Hashable) -> Copies:
        copies = super().swap_in(seq)
        del self._sequences[seq].tokens[-1:]
        self._sequences[seq].room = 0
        return copies


class HostBlockIsFreeAtOnce(PagedAllocator):
    def swap_out(self, seq: Hashable) -> Copies:
        copies = super().swap_out(seq)
        self._free_host_blocks += self._swapped[seq].host_blocks
        return copies

    def swap_in(self, seq: Hashable) -> Copies:
        copies = super().swap_in(seq)
        del self._free_host_blocks[len(self._free_host_blocks) - len(copies) :]
        return copies


class SwapOutKeepsTheBlocks(PagedAllocator):
    def swap_out(self, seq: Hashable) -> Copies:
        table = list(self._sequences[seq].table)
        for block in table:
            self._references[block] += 1
        try:
            return super().swap_out(seq)
        except MemoryError:
            self._release(table)
            raise


class SwapOutFreesWhatABranchStillReads(PagedAllocator):
    def swap_out(self, seq: Hashable) -> Copies:
        table = list(self._sequences[seq].table)
        copies = super().swap_out(seq)
        shared = [block for block in table if self._references[block]]
        for block in shared:
            self._references[block] = 1
        self._release(shared)
        return copies


class AbortForgetsTheHost(PagedAllocator):
    def free(self, seq: Hashable) -> None:
        if seq in self._swapped:
            del self._swapped[seq]
        else:
            super().free(seq)


class SwapInLeaksTheHost(PagedAllocator):
    def swap_in(self, seq: Hashable) -> Copies:
        copies = super().swap_in(seq)
        del self._free_host_blocks[len(self._free_host_blocks) - len(copies) :]
        return copies


class FailedSwapInIsTakenForDone(PagedAllocator):
    def swap_in(self, seq: Hashable) -> Copies:
        try:
            return super().swap_in(seq)
        except MemoryError:
            self._sequences[seq] = self._swapped.pop(seq)
            raise


class FailedSwapOutKeepsHostBlocks(PagedAllocator):
    def swap_out(self, seq: Hashable) -> Copies:
        try:
            return super().swap_out(seq)
        except MemoryError:
            self._free_host_blocks.clear()
            raise


class ResetForgetsTheHost(PagedAllocator):
    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        for state in self._swapped.values():
            state.publishes = True


class LookAheadIsTakenForTheSequence(PagedAllocator):
    """The last n blocks go to the host; with look-ahead behind them, the first is missing."""

    def swap_out(self, seq: Hashable) -> Copies:
        table = list(self._sequences[seq].table)
        copies = super().swap_out(seq)
        suffix = table[len(table) - len(copies) :]
        return [(block, host) for block, (_, host) in zip(suffix, copies, strict=True)]


class SwapNamesBlocksOutsideTheHost(PagedAllocator):
    def swap_out(self, seq: Hashable) -> Copies:
        return [(block, host + self.num_blocks) for block, host in super().swap_out(seq)]


WRONG: dict[str, Wrong] = {
    "swap_leaves_the_partial_block": Wrong(
        SwapLeavesThePartialBlock, "D1", "ours", "only complete blocks go to the host; the tail comes back empty"
    ),
    "swap_in_backwards": Wrong(
        SwapInBackwards, "D1", "ours", "blocks come back in another order than the table names them"
    ),
    "swap_in_without_the_last_token": Wrong(
        SwapInWithoutTheLastToken,
        "D1",
        "GeeeekExplorer/nano-vllm#144",
        "the next token is written where the last one stands",
    ),
    "host_block_is_free_at_once": Wrong(
        HostBlockIsFreeAtOnce, "C2", "LMCache/LMCache#5248", "two sequences are copied to one host block"
    ),
    "swap_out_keeps_the_blocks": Wrong(
        SwapOutKeepsTheBlocks, "A1", "vllm-project/vllm#546", "what was swapped out still occupies the device"
    ),
    "swap_out_frees_what_a_branch_still_reads": Wrong(
        SwapOutFreesWhatABranchStillReads, "A3", "ours", "a block shared with a branch that stays is given away"
    ),
    "abort_forgets_the_host": Wrong(
        AbortForgetsTheHost, "A5", "vllm-project/vllm#46283", "host blocks of a request aborted while swapped out"
    ),
    "swap_in_leaks_the_host": Wrong(
        SwapInLeaksTheHost, "A6", "vllm-project/vllm#5578", "swap space fills up until nothing can be preempted"
    ),
    "failed_swap_in_is_taken_for_done": Wrong(
        FailedSwapInIsTakenForDone, "A6", "guoqingbao/xinfer#405", "a sequence runs without a table"
    ),
    "failed_swap_out_keeps_host_blocks": Wrong(
        FailedSwapOutKeepsHostBlocks, "A6", "vllm-project/vllm#5578", "what was taken before the host ran full"
    ),
    "reset_forgets_the_host": Wrong(
        ResetForgetsTheHost, "B9", "vllm-project/vllm-omni#6739", "a sequence on the host publishes old weights' blocks"
    ),
    "look_ahead_is_taken_for_the_sequence": Wrong(
        LookAheadIsTakenForTheSequence, "D1", "vllm-project/vllm#44151", "the first block is left, a blank one kept"
    ),
    "swap_names_blocks_outside_the_host": Wrong(
        SwapNamesBlocksOutsideTheHost, "C2", "vllm-project/vllm#7577", "a mapping out of range, and nobody checks"
    ),
}
