"""Our block allocator in plain Python: the one to read, and to hold the compiled one against."""

from kvproof_impls.paged_python.allocator import PagedAllocator
from kvproof_impls.paged_python.window import WindowedAllocator

__all__ = ["PagedAllocator", "WindowedAllocator"]
