"""Right allocators of other shapes than the built-in ones, to start mistakes from; they must break nothing."""

from __future__ import annotations

from kvproof_impls.paged_python.window import WindowedAllocator


class SmallWindow(WindowedAllocator):
    """A window of 5: several blocks of 1 or 2 tokens, a part of one of 16; and with it a reserved block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, window=5)
