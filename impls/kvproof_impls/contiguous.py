"""Reserves the maximum length for every sequence, in consecutive blocks, as serving engines did before paging.

The baseline that paging is compared with: slots that a sequence never reaches are wasted (internal fragmentation), and
free blocks that lie in holes too small for a reservation are no use (external fragmentation). Kwon et al., SOSP 2023,
section 3.1, describe both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

Copies = Sequence[tuple[int, int]]


class ContiguousAllocator:
    """First fit over the holes between reservations.

    ``max_model_len``, in tokens, is what a sequence reserves and how long it can become; without it a quarter of the
    pool. ``allocate`` takes a smaller or larger ``max_tokens`` for one sequence, as when a request states its limit:
    it is the mix of sizes that leaves holes.

    Nothing is shared: no fork, no prefix cache, no rollback. ``reserves_max_length`` declares that tables are as long
    as the reservation, whatever has been written.

    Raises:
        ValueError: ``num_blocks``, ``block_size`` or ``max_model_len`` below 1.
    """

    reserves_max_length = True

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        if max_model_len is not None and max_model_len < 1:
            raise ValueError(f"max_model_len ({max_model_len}) must be at least 1")
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len or max(1, num_blocks // 4) * block_size
        self._regions: dict[Hashable, range] = {}
        self._lengths: dict[Hashable, int] = {}
        self._limits: dict[Hashable, int] = {}

    def allocate(
        self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = (), max_tokens: int | None = None
    ) -> int:
        """Reserve ``max_tokens`` (default ``max_model_len``) slots for ``seq``; nothing is ever found cached.

        Raises:
            KeyError: ``seq`` is live already.
            ValueError: ``max_tokens`` below 1.
            MemoryError: the prompt is longer than the reservation, or no hole is large enough.
        """
        if seq in self._regions:
            raise KeyError(f"{seq!r} is allocated already")
        limit = self.max_model_len if max_tokens is None else max_tokens
        if limit < 1:
            raise ValueError(f"max_tokens ({limit}) must be at least 1")
        self._require_within(seq, len(tokens), limit)
        region = self._first_fit(self._blocks_for(limit))
        if region is None:
            raise MemoryError(
                f"no hole of {self._blocks_for(limit)} consecutive blocks, {self.num_free_blocks()} free in all"
            )
        self._regions[seq], self._lengths[seq], self._limits[seq] = region, len(tokens), limit
        return 0

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """Use the next reserved slots. Raises KeyError for an unknown ``seq``, MemoryError past the reservation."""
        length = self._lengths[seq] + len(tokens)
        self._require_within(seq, length, self._limits[seq])
        self._lengths[seq] = length
        return ()

    def free(self, seq: Hashable) -> None:
        """Give the reservation back. Raises KeyError when ``seq`` is unknown."""
        for state in (self._regions, self._lengths, self._limits):
            del state[seq]

    def block_table(self, seq: Hashable) -> Sequence[int]:
        """The whole reservation, used or not. Raises KeyError when ``seq`` is unknown."""
        return self._regions[seq]

    def num_free_blocks(self) -> int:
        """Blocks in no reservation, in holes of any size."""
        return self.num_blocks - sum(map(len, self._regions.values()))

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether ``num_tokens`` and a whole reservation around them fit. Raises ValueError below 0."""
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        fits = num_tokens <= self.max_model_len
        return fits and self._first_fit(self._blocks_for(self.max_model_len)) is not None

    def holes(self) -> Iterator[range]:
        """Free blocks in runs of consecutive ids, lowest first."""
        start = 0
        for region in sorted(self._regions.values(), key=lambda region: region.start):
            if region.start > start:
                yield range(start, region.start)
            start = region.stop
        if start < self.num_blocks:
            yield range(start, self.num_blocks)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _first_fit(self, num_blocks: int) -> range | None:
        starts = (hole.start for hole in self.holes() if len(hole) >= num_blocks)
        start = next(starts, None)
        return None if start is None else range(start, start + num_blocks)

    def _require_within(self, seq: Hashable, num_tokens: int, limit: int) -> None:
        if num_tokens > limit:
            raise MemoryError(f"{num_tokens} tokens don't fit in the {limit} reserved for {seq!r}")
