"""How long threads of this process waited for a core while others had it: what Linux counts for each of them.

A launch on several threads is over when the last of them is, so that the longest wait of one thread is what a sample
may have lost to a busy machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

THREADS = Path("/proc/self/task")


def waited_ns() -> Mapping[str, int]:
    """Of each thread so far, in nanoseconds; empty where the system does not count."""
    found = {}
    for thread in THREADS.glob("*/schedstat"):
        try:
            found[thread.parent.name] = int(thread.read_bytes().split()[1])
        except (OSError, IndexError, ValueError):  # a thread that has ended, or a kernel that doesn't count
            continue
    return found


def longest_wait_seconds(before: Mapping[str, int], after: Mapping[str, int]) -> float | None:
    """Of one thread, between two readings; None where there is nothing to read."""
    if not after:
        return None
    return max(0, *(waited - before.get(thread, 0) for thread, waited in after.items())) / 1e9
