"""Consecutive blocks for the whole life of a sequence, reserved when it comes: serving before paging.

What paging is compared with in Kwon et al., SOSP 2023, section 6.1: Orca with a buddy allocator, in three variants
that differ in what is known of a request when it is admitted. Slots that a sequence never reaches are wasted inside
its reservation; the rounding to a power of two, and free runs too short for the next request, are wasted outside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

from kvproof_impls.contiguous.buddy import BuddyPool, order_of

Copies = Sequence[tuple[int, int]]


class ContiguousAllocator(ABC):
    """One run of the buddy system for each sequence. Nothing is shared: no fork, no prefix cache, no rollback.

    ``max_model_len``, in tokens, is how long a sequence can become, prompt and output together; without it a quarter
    of the pool. ``allocate`` takes the limit of one request, ``max_tokens``; a request without one could become as
    long as the model allows, and so much is reserved in every variant.

    Raises:
        ValueError: ``num_blocks``, ``block_size`` or ``max_model_len`` below 1, or no run of the empty pool is as
            long as ``max_model_len``.
    """

    reserves: str

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        if max_model_len is not None and max_model_len < 1:
            raise ValueError(f"max_model_len ({max_model_len}) must be at least 1")
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len or max(1, num_blocks // 4) * block_size
        self.buddies = BuddyPool(num_blocks)
        if not self.buddies.fits(self._blocks_for(self.max_model_len)):
            longest = len(self.buddies.free_runs()[0])
            raise ValueError(
                f"max_model_len ({max_model_len}) needs {1 << order_of(self._blocks_for(self.max_model_len))} "
                f"consecutive blocks of {block_size}; a pool of {num_blocks} has no longer run than {longest}"
            )
        self._runs: dict[Hashable, range] = {}
        self._lengths: dict[Hashable, int] = {}
        self._reserved: dict[Hashable, int] = {}

    @abstractmethod
    def reservation(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Slots for a request of which ``max_tokens``, prompt included, will be used."""

    def allocate(
        self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = (), max_tokens: int | None = None
    ) -> int:
        """Reserve a run for ``seq``; nothing is ever found cached. ``max_tokens``: prompt and output of the request.

        Raises:
            KeyError: ``seq`` is live already.
            ValueError: ``max_tokens`` below 1 or below the prompt.
            MemoryError: longer than ``max_model_len``, or no free run is long enough.
        """
        if seq in self._runs:
            raise KeyError(f"{seq!r} is allocated already")
        if max_tokens is not None and max_tokens < max(1, len(tokens)):
            raise ValueError(f"max_tokens ({max_tokens}) of {seq!r} must be at least 1 and hold its prompt")
        limit = self.max_model_len if max_tokens is None else max_tokens
        self._require_within(seq, max(limit, len(tokens)), self.max_model_len)
        reserved = min(self.reservation(len(tokens), limit), self.max_model_len)
        self._runs[seq] = self.buddies.take(self._blocks_for(reserved))
        self._lengths[seq], self._reserved[seq] = len(tokens), reserved
        return 0

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """Use the next reserved slots. Raises KeyError for an unknown ``seq``, MemoryError past the reservation."""
        length = self._lengths[seq] + len(tokens)
        self._require_within(seq, length, self._reserved[seq])
        self._lengths[seq] = length
        return ()

    def free(self, seq: Hashable) -> None:
        """Give the run back. Raises KeyError when ``seq`` is unknown."""
        self.buddies.give(self._runs.pop(seq))
        del self._lengths[seq], self._reserved[seq]

    def block_table(self, seq: Hashable) -> Sequence[int]:
        """The whole run, used or not, and what rounding added to it. Raises KeyError when ``seq`` is unknown."""
        return self._runs[seq]

    def num_reserved_tokens(self, seq: Hashable) -> int:
        """Slots that were asked for, before rounding. Raises KeyError when ``seq`` is unknown."""
        return self._reserved[seq]

    def num_free_blocks(self) -> int:
        """Blocks in no run of a sequence, in free runs of any length."""
        return self.buddies.num_free

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether a request of unknown length with ``num_tokens`` of prompt fits. Raises ValueError below 0."""
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return num_tokens <= self.max_model_len and self.buddies.fits(self._blocks_for(self.max_model_len))

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _require_within(self, seq: Hashable, num_tokens: int, limit: int) -> None:
        if num_tokens > limit:
            raise MemoryError(f"{num_tokens} tokens of {seq!r} don't fit in the {limit} that it may have")


class MaxAllocator(ContiguousAllocator):
    """Orca (Max): the longest that the model allows, whatever the request says."""

    reserves = "max"

    def reservation(self, num_prompt_tokens: int, max_tokens: int) -> int:
        return self.max_model_len


class Pow2Allocator(ContiguousAllocator):
    """Orca (Pow2): the output is guessed too long by at most a factor of two; 25 tokens reserve 32."""

    reserves = "pow2"

    def reservation(self, num_prompt_tokens: int, max_tokens: int) -> int:
        return num_prompt_tokens + (1 << order_of(max_tokens - num_prompt_tokens))


class OracleAllocator(ContiguousAllocator):
    """Orca (Oracle): the true length is known beforehand, which no server can."""

    reserves = "oracle"

    def reservation(self, num_prompt_tokens: int, max_tokens: int) -> int:
        return max_tokens
