"""Our block allocator, its hot path compiled; ``kvproof_impls.paged_python`` is the same in plain Python, to read."""

from functools import partial

from kvproof_impls.paged.batched import PagedAllocator
from kvproof_impls.paged.window import WindowedAllocator

__all__ = ["PagedAllocator", "WindowedAllocator", "evicts_all", "evicts_fifo", "evicts_leaf"]

evicts_fifo = partial(PagedAllocator, eviction="fifo")
evicts_leaf = partial(PagedAllocator, eviction="leaf")
evicts_all = partial(PagedAllocator, eviction="all")
"""The policies of other systems, so that a replay can say what each would have cost."""
