"""How long threads of this process waited for a core while others had it: what Linux counts for each of them.

A launch on several threads is over when the last of them is, so that the longest wait of one thread is what a sample
may have lost to a busy machine: nobody knows how much of it others made good. Of a launch on one thread it is known to
the microsecond. Its time less its waits is what it would have taken with a core to itself, but for what others left of
its caches.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvproof_reports.statistics import THRESHOLD

THREADS = Path("/proc/self/task")


Result = TypeVar("Result")


@dataclass(frozen=True)
class Watched:
    """What became of the threads of this process during a call, in seconds."""

    longest_wait: float | None
    """Of any thread; None, as the next, where the system does not count."""
    own_wait: float | None
    """Of the calling thread."""
    own_work: float
    """Processor time of the calling thread."""
    others_work: float
    """Of all other threads together."""

    def wait_within(self, seconds: float) -> float | None:
        """What the calling thread waited in a sample of ``seconds``: a wait may have begun just before it, and while
        the thread worked it did not wait."""
        return None if self.own_wait is None else max(0.0, min(self.own_wait, seconds - self.own_work))


def watch(call: Callable[[], Result]) -> tuple[Result, Watched]:
    """What ``call`` gives, and what became of the threads meanwhile."""
    before, process, own = waited_ns(), time.process_time_ns(), time.thread_time_ns()
    result = call()
    own, process, after = time.thread_time_ns() - own, time.process_time_ns() - process, waited_ns()
    thread = str(threading.get_native_id())
    own_wait = (after[thread] - before.get(thread, 0)) / 1e9 if thread in after else None
    return result, Watched(longest_wait_seconds(before, after), own_wait, own / 1e9, (process - own) / 1e9)


def on_core(samples: Sequence[float], watched: Sequence[Watched]) -> tuple[float, ...] | None:
    """Each sample less what its thread waited for a core, in seconds; None where others worked beside it (by less than
    the threshold of a comparison is not at all), or the system does not count. Their work is held against its own: a
    sample is long on a busy machine, also one in which a thread waits for another."""
    both = list(zip(samples, watched, strict=True))
    waits = [wait for taken, one in both if (wait := one.wait_within(taken)) is not None]
    if not both or len(waits) < len(both):
        return None
    if statistics.median(one.others_work - THRESHOLD * one.own_work for one in watched) > 0:
        return None
    return tuple(taken - wait for taken, wait in zip(samples, waits, strict=True))


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
