"""No kernel reads or writes a byte outside its tensors: each one ends, and begins, at a page that may not be touched.

An interpreted kernel does not notice a stray access, but the processor does: it ends the process. Hence the subprocess.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

PAGE = mmap.PAGESIZE


def fence(tensor: torch.Tensor, at_end: bool) -> torch.Tensor:
    """A copy of ``tensor`` between two forbidden pages, that touches the one at its end or the one at its start."""
    size = tensor.numel() * tensor.itemsize
    inside = -(-size // PAGE) * PAGE
    region = mmap.mmap(-1, inside + 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for page in (address, address + PAGE + inside):
        if protect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE + (inside - size if at_end else 0)
    fenced = torch.frombuffer(region, dtype=tensor.dtype, offset=offset, count=tensor.numel()).view(tensor.shape)
    return fenced.copy_(tensor)


def attend_between_fences(at_end: bool) -> None:
    from kvproof_kernels.geometry import Geometry
    from kvproof_kernels.plan import PagedAttention

    geometry = Geometry(6, 2, 80, 80, 16, torch.float16, torch.float16, 0.1, alibi_slopes=(0.1,) * 6, sinks=(0.0,) * 6)
    tables = torch.tensor([[7, -1, 2**30, -1], [0, 6, 2, -1], [1, 3, 5, 2**30]], dtype=torch.int32)
    pools = [fence(torch.randn(8, 16, 2, 80).half(), at_end) for _ in range(2)]
    for query_lens in ([1, 1, 1], [1, 7, 12]):
        rows = sum(query_lens)
        attend = PagedAttention(geometry, fence(tables, at_end), [1, 37, 35], query_lens)
        fence_plan(attend, at_end)
        out, lse = attend(
            fence(torch.randn(rows, 6, 80).half(), at_end), *pools, fence(torch.zeros(rows, 6, 80).half(), at_end)
        )
        assert out.isfinite().all()
        assert lse.isfinite().all()


def fence_plan(attend, at_end: bool) -> None:
    """What the plan keeps on the device, between pages of its own too."""
    work = {name: fence(getattr(attend.work, name), at_end) for name in ("items", "positions", "partial_start")}
    terms = {
        name: fence(getattr(attend.terms, name), at_end) for name in ("slopes", "sinks", "key_scales", "value_scales")
    }
    attend.work, attend.terms = replace(attend.work, **work), replace(attend.terms, **terms)
    attend.buffers.loaded = attend.work


def merge_between_fences(at_end: bool) -> None:
    from kvproof_kernels.combine import combine

    parts = [fence(part, at_end) for part in (torch.randn(7, 3, 80), torch.randn(7, 3))]
    starts, sinks = torch.tensor([0, 2, 2, 7], dtype=torch.int32), torch.zeros(3)
    results = [fence(torch.zeros(3, 3, 80), at_end), fence(torch.zeros(3, 3), at_end)]
    combine(*parts, fence(starts, at_end), fence(sinks, at_end), *results)
    assert results[0][1].count_nonzero() == 0
    assert results[0][[0, 2]].count_nonzero() == 480


def move_between_fences(at_end: bool) -> None:
    from kvproof_kernels.block_copy import copy_blocks
    from kvproof_kernels.cache_write import write_cache

    pools = [fence(torch.randn(5, 3, 2, 80).half(), at_end) for _ in range(2)]
    rows = [fence(torch.randn(6, 2, 80).half(), at_end) for _ in range(2)]
    write_cache(*rows, *pools, fence(torch.tensor([0, -1, 14, 7, -1, 3]), at_end))
    assert torch.equal(pools[0][4, 2], rows[0][2])
    copy_blocks(*pools, [(0, 4), (1, 3)])
    assert torch.equal(pools[1][0], pools[1][4])
    codes = [fence(torch.zeros(5, 3, 2, 80, dtype=torch.int8), at_end) for _ in range(2)]
    scales = {name: fence(torch.zeros(5, 3, 2), at_end) for name in ("key_scale", "value_scale")}
    write_cache(*rows, *codes, fence(torch.tensor([0, -1, 14, 7, -1, 3]), at_end), **scales)
    assert torch.equal(codes[1][4, 2].abs().amax(1), torch.tensor([127, 127], dtype=torch.int8))
    copy_blocks(*codes, [(0, 3), (4, 1)], **scales)
    assert torch.equal(scales["value_scale"][1], scales["value_scale"][4])
    heads = {name: fence(torch.ones(2), at_end) for name in scales}
    write_cache(*rows, *codes, fence(torch.tensor([0, -1, 14, 7, -1, 3]), at_end), **heads)
    assert codes[0][0, 0].any()


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
def test_nothing_outside_the_tensors_is_touched(at_end):
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    script += "from test_memory_bounds import attend_between_fences, merge_between_fences, move_between_fences\n"
    script += f"attend_between_fences({at_end}); merge_between_fences({at_end}); move_between_fences({at_end})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"


def test_the_fence_stands():
    """What the test above relies on: one element too far ends the process by a signal."""
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    script += "import ctypes, torch, test_memory_bounds\n"
    script += "fenced = test_memory_bounds.fence(torch.zeros(10), True)\n"
    script += "print(ctypes.c_float.from_address(fenced.data_ptr() + 36).value, flush=True)\n"
    script += "print(ctypes.c_float.from_address(fenced.data_ptr() + 40).value, flush=True)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "0.0\n"
    assert done.returncode < 0
