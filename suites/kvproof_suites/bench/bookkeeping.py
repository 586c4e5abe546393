"""What an allocator itself takes of memory: bytes of bookkeeping a block, of a large and empty pool."""

from __future__ import annotations

import gc
import os
import statistics
import tracemalloc
from collections.abc import Callable
from typing import Any

POOL_BLOCKS = 262_144
"""4 million tokens in blocks of 16: what the keys and values of a large model leave room for on several GPUs."""
SMALL_POOL_BLOCKS = POOL_BLOCKS // 64
"""What this one takes is left out of the other's: it does not grow with the pool."""


def bytes_per_block(make: Callable[[int, int], Any], block_size: int) -> tuple[float, str]:
    """(bytes, how they were found): as the allocator counts itself by ``bookkeeping_bytes()``, or the growth of the
    process while the pool is made, whichever of two views shows more: Python's own allocations, or resident pages.

    Pages that were never touched are in neither; a pool that keeps keys and values of its own is measured with them.
    """
    if hasattr(make(1, block_size), "bookkeeping_bytes"):
        return marginal(lambda num_blocks: int(make(num_blocks, block_size).bookkeeping_bytes())), "declared"
    resident = marginal(growths(resident_bytes, make, block_size))
    tracemalloc.start()
    traced = marginal(growths(traced_bytes, make, block_size))
    tracemalloc.stop()
    return (resident, "resident pages") if resident > traced else (traced, "traced allocations")


def marginal(size: Callable[[int], int]) -> float:
    large, small = (
        statistics.median(size(num_blocks) for _ in range(3)) for num_blocks in (POOL_BLOCKS, SMALL_POOL_BLOCKS)
    )
    return max(0.0, large - small) / (POOL_BLOCKS - SMALL_POOL_BLOCKS)


def growths(read: Callable[[], int], make: Callable[[int, int], Any], block_size: int) -> Callable[[int], int]:
    """Number of blocks to what a pool of so many adds. Earlier pools are kept, so that none grows into what another
    left behind."""
    kept = []

    def grow(num_blocks: int) -> int:
        gc.collect()
        before = read()
        kept.append(make(num_blocks, block_size))
        return read() - before

    return grow


def traced_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


def resident_bytes() -> int:
    """0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
