"""Our block allocator, its hot path compiled; ``kvproof_impls.paged_python`` is the same in plain Python, to read."""

from kvproof_impls.paged.batched import PagedAllocator
from kvproof_impls.paged.window import WindowedAllocator

__all__ = ["PagedAllocator", "WindowedAllocator"]
