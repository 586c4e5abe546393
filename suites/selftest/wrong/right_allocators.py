"""Right allocators of other shapes than the built-in ones, to start mistakes from; they must break nothing."""

from __future__ import annotations

from kvproof_impls import paged, paged_python

WINDOW = 5
"""Several blocks of 1 or 2 tokens, a part of one of 16."""


class SmallWindow(paged_python.WindowedAllocator):
    """With the window comes a reserved block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, window=WINDOW)


class SmallCompiledWindow(paged.WindowedAllocator):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, window=WINDOW)
