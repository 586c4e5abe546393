"""Our block allocator for models with a sliding window: blocks that no query can see any more are given back.

The table keeps its length, since position t stands at entry t // block_size; where a block was given back it names the
*null block*, a reserved id behind the usable ones that is never owned, counted or written. Rolling back into what was
given back is impossible, and a sequence with holes is not worth swapping: both capabilities are absent.
"""

from __future__ import annotations

from typing import Any

from kvproof_impls.paged.batched import PagedAllocator
from kvproof_impls.paged_sizes import whole


class WindowedAllocator(PagedAllocator):
    """``window`` counts visible positions, the query's own included.

    Raises:
        ValueError: ``window`` or ``num_reserved`` below 1, or another number out of range.
    """

    truncate = swap_out = swap_in = None  # type: ignore[assignment]

    def __init__(self, num_blocks: int, block_size: int, window: int, **options: Any) -> None:
        self.window = self._num_visible = whole("window", window, 1)
        num_reserved = whole("num_reserved", options.pop("num_reserved", 1), 1)
        super().__init__(num_blocks, block_size, num_reserved=num_reserved, **options)
