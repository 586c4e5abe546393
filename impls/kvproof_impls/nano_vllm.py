"""nano-vllm's BlockManager, from a checkout on the import path: it is not on PyPI.

Read at commit bb823b3 (2026-04-26), nanovllm/engine/block_manager.py and scheduler.py; needs xxhash and NumPy. The
package's own ``__init__`` imports the whole engine and with it flash-attn and CUDA, and is passed by.

All policy: freed blocks queue first in, first out, with or without content; the last block of a prompt is never
matched. Not here, since it has none: fork, reserve, truncate, swap, a reset of the cache, keys in the hash. Requests
with a key are kept out of the prefix cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof_impls.checkout import module_below, require_call
from kvproof_impls.token_lists import int32_list

Copies = Sequence[tuple[int, int]]

COMMIT = "nano-vllm bb823b3"


class NanoVllmAllocator:
    """Contract ``BlockAllocator``. Token ids beyond int32 are refused: the engine's are vocabulary indices.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self._manager = engine().BlockManager(num_blocks, block_size)
        self._new_sequence = engine().Sequence
        self._sequences: dict[Hashable, Any] = {}
        self._keyed: set[Hashable] = set()

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """As ``Scheduler.schedule`` does for a waiting sequence."""
        if seq in self._sequences:
            raise KeyError(f"{seq!r} is allocated already")
        sequence = self._sequence(tokens)
        manager = self._manager
        num_cached = manager.can_allocate(sequence)
        if key and num_cached > 0:
            num_cached = 0 if sequence.num_blocks <= self.num_free_blocks() else -1
        if num_cached == -1:
            raise MemoryError(f"no room for {sequence.num_blocks} blocks: {self.num_free_blocks()} free")
        manager.allocate(sequence, num_cached)
        self._sequences[seq] = sequence
        if key:
            self._keyed.add(seq)
        return int(sequence.num_cached_tokens)

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """The engine appends one token a step; a chunk is that many of them, once they are known to fit."""
        sequence, size = self._sequences[seq], self.block_size
        tokens = plain(tokens)
        num_new = len(tokens)
        if num_new > 1 or not sequence.num_tokens % size:  # or else it goes into the last block
            self._require_growth(seq, -(-(sequence.num_tokens + num_new) // size) - len(sequence.block_table))
        for token in tokens:
            sequence.append_token(token)
            if size > 1:
                self._manager.may_append(sequence)
            else:  # its test for a new block, length % size == 1, is made for sizes from 256 up (config.py)
                sequence.block_table.append(self._manager._allocate_block())
        return ()

    def commit(self, seq: Hashable) -> None:
        """As ``Scheduler.postprocess`` does after a step."""
        sequence = self._sequences[seq]
        if seq in self._keyed:
            return
        sequence.num_scheduled_tokens = sequence.num_tokens - sequence.num_cached_tokens
        self._manager.hash_blocks(sequence)
        sequence.num_cached_tokens += sequence.num_scheduled_tokens
        sequence.num_scheduled_tokens = 0

    def free(self, seq: Hashable) -> None:
        self._manager.deallocate(self._sequences.pop(seq))
        self._keyed.discard(seq)

    def block_table(self, seq: Hashable) -> Sequence[int]:
        table: list[int] = self._sequences[seq].block_table
        return table

    def num_free_blocks(self) -> int:
        return len(self._manager.free_block_ids)

    def can_allocate(self, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return -(-num_tokens // self.block_size) <= self.num_free_blocks()

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """``can_allocate`` of the manager would say -1 where the rest does not fit; this is its look-up alone."""
        sequence, manager, parent, num_cached = self._sequence(tokens), self._manager, -1, 0
        while not key and num_cached < sequence.num_blocks - 1:
            block = sequence.block(num_cached)
            parent = manager.compute_hash(block, parent)
            found = manager.hash_to_block_id.get(parent, -1)
            if found == -1 or manager.blocks[found].token_ids != block:
                break
            num_cached += 1
        return num_cached * self.block_size

    def _require_growth(self, seq: Hashable, num_grown: int) -> None:
        if num_grown > self.num_free_blocks():
            raise MemoryError(f"no room for {num_grown} blocks of {seq!r}: {self.num_free_blocks()} free")

    def _sequence(self, tokens: Sequence[int]) -> Any:
        """A sequence needs a last token; an empty prompt has its one taken away again."""
        prompt = plain(tokens)
        sequence = self._new_sequence(prompt or [0])
        sequence.block_size = self.block_size  # a class attribute that its engine sets once
        if not prompt:
            sequence.token_ids, sequence.num_tokens = [], 0
        return sequence


@cache
def engine() -> SimpleNamespace:
    """What is used of it, held to the calls of the commit that this was written for."""
    manager, sequence = (
        module_below("nanovllm", f"engine.{name}", "nano-vllm") for name in ("block_manager", "sequence")
    )
    require_call(manager.BlockManager.__init__, ("self", "num_blocks", "block_size"), COMMIT)
    require_call(manager.BlockManager.allocate, ("self", "seq", "num_cached_blocks"), COMMIT)
    require_call(manager.BlockManager.hash_blocks, ("self", "seq"), COMMIT)
    return SimpleNamespace(BlockManager=manager.BlockManager, Sequence=sequence.Sequence)


def plain(tokens: Any) -> list[int]:
    return int32_list(tokens, why="token ids past int32 are no vocabulary indices")
