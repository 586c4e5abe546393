"""Memory of a benchmark in huge pages, where the system has them.

A pool in pages of 4 KiB is read as fast as the addresses that it happened to get allow: processes of one benchmark then
differ by 20 % and more, while all samples of one process agree. Of huge pages there are so few that it does not matter.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import torch

HUGE_PAGE_BYTES = 2**21
HUGEPAGE, COLLAPSE = ADVICE = (14, 25)
"""Of madvise(2), what the first touch shall take, and what was touched before shall move to, since Linux 6.1."""

Advise = Callable[[int, int, int], int]


def _system_call() -> Advise | None:
    if not sys.platform.startswith("linux"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise  # type: ignore[no-any-return]


ADVISE = _system_call()


def in_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, its memory moved into huge pages as far as the system has some. On a GPU, and of a tensor that
    is smaller than such a page, nothing is done."""
    memory = tensor.untyped_storage()
    start = -(-memory.data_ptr() // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    end = (memory.data_ptr() + memory.nbytes()) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if tensor.device.type == "cpu" and ADVISE is not None and end > start:
        for advice in ADVICE:  # where one is refused, as by an older system, the memory stays as it is
            ADVISE(start, end - start, advice)
    return tensor
