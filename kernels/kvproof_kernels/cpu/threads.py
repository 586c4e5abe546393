"""Threads that run compiled code side by side, as many as torch has been told to use.

Plain Python threads, since the compiled code runs without Python's lock: several callers may launch at once, and a
forked process starts threads of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)


def num_threads() -> int:
    return torch.get_num_threads()


def run_on_all(work: Callable[[int], None], threads: int) -> None:
    """``work(0)`` … ``work(threads - 1)``, the first in the calling thread; returns when all are done."""
    if threads == 1:
        work(0)
        return
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="kvproof-cpu")
    others = [_pools[threads].submit(work, thread) for thread in range(1, threads)]
    try:
        work(0)
    finally:
        for other in others:
            other.result()
