"""Swapping, on top of the single calls: a sequence that has to make way waits on the host."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvproof_impls.contract import Copies
from kvproof_impls.paged.allocator import SingleCalls
from kvproof_impls.paged.fields import NO_FIELDS
from kvproof_impls.paged.layout import CUT
from kvproof_impls.paged_sizes import whole


@dataclass
class Swapped:
    """A sequence on the host: its blocks there, and what a prefix cache has to know when it comes back."""

    host_blocks: list[int]
    tokens: Any
    fields: Any
    root: int
    publishes: int


class Swapping(SingleCalls):
    """``num_host_blocks``, by default as many as the pool has, take what is swapped out; host blocks are not shared."""

    def __init__(self, num_blocks: int, block_size: int, *, num_host_blocks: int | None = None, **options: Any) -> None:
        super().__init__(num_blocks, block_size, **options)
        self.num_host_blocks = self.num_blocks if num_host_blocks is None else whole("num_host_blocks", num_host_blocks)
        self._free_host_blocks: list[int] = []
        self._num_host_used = 0  # host blocks from here on were never taken: most engines swap little
        self._swapped: dict[Hashable, Swapped] = {}

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
        row = self._rows[seq]
        num_needed = -(-int(self._state.sequences[row]["length"]) // self.block_size)
        num_free = len(self._free_host_blocks) + self.num_host_blocks - self._num_host_used
        if num_needed > num_free:
            raise MemoryError(f"{num_needed} host blocks needed, {num_free} of {self.num_host_blocks} free")
        table = self._state.tables[row, :num_needed]  # look-ahead past the last token stays behind
        kept = self._kept(row, table)
        kept.host_blocks += [self._take_host_block() for _ in range(num_needed)]
        copies = list(zip(table.tolist(), kept.host_blocks, strict=True))
        super().free(seq)
        self._swapped[seq] = kept
        return copies

    def swap_in(self, seq: Hashable) -> Copies:
        """Bring ``seq`` back; return (host block, device block) pairs to copy before anything else is written.

        Raises:
            KeyError: ``seq`` is not swapped out.
            MemoryError: too few free blocks; ``seq`` stays on the host.
        """
        kept = self._swapped[seq]
        self._admit(seq, kept.tokens, kept.fields, kept.root, finds=False)
        del self._swapped[seq]
        row = self._rows[seq]
        self._state.sequences[row]["publishes"] = kept.publishes
        self._free_host_blocks += kept.host_blocks
        return list(zip(kept.host_blocks, self._state.tables[row, : len(kept.host_blocks)].tolist(), strict=True))

    def reset_prefix_cache(self) -> None:
        """Forget all that was computed so far; live sequences go on, and publish no more."""
        super().reset_prefix_cache()
        for kept in self._swapped.values():
            kept.publishes = 0

    def _take_host_block(self) -> int:
        if self._free_host_blocks:
            return self._free_host_blocks.pop()
        self._num_host_used += 1
        return self._num_host_used - 1

    def _kept(self, row: int, table: Any) -> Swapped:
        state, record = self._state, self._state.sequences[row]
        length = int(record["length"])
        caches, has_fields = state.contents.size, state.fields.size
        tokens = (
            state.contents.reshape(-1, self.block_size)[table].ravel()[:length] if caches else np.empty(length, "i4")
        )
        fields, publishes = state.fields[table] if has_fields else NO_FIELDS, int(record["publishes"])
        if publishes >= CUT:
            fields[-1], publishes = publishes - CUT, 1
        return Swapped([], tokens, fields, int(record["root"]), publishes)

    def _numbers_in_use(self) -> set[int]:
        away = self._swapped.values()
        return super()._numbers_in_use().union(*({-1 - kept.root, *kept.fields.tolist()} for kept in away))

    def _refuse_known(self, seq: Hashable) -> None:
        super()._refuse_known(seq)
        if seq in self._swapped:
            raise KeyError(f"{seq!r} is allocated already, and swapped out")
