"""Our block allocator in plain Python: the one to read, and to hold the compiled one against."""

from kvproof_impls.paged_python.batched import PagedAllocator
from kvproof_impls.paged_python.pool import EVICTION
from kvproof_impls.paged_python.window import WindowedAllocator

__all__ = ["EVICTION", "PagedAllocator", "WindowedAllocator"]
