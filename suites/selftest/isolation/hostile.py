"""Kernels that are right but for what they do to the process that they run in, once a context has 17 tokens."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvproof_impls import from_function

OFTEN = 10**6


def attend(query, key_pool, value_pool, block_tables, context_lens, query_start, *, scale):
    out = query.new_empty(*query.shape[:2], value_pool.shape[3])
    size, group = key_pool.shape[1], query.shape[1] // key_pool.shape[2]
    for i, n in enumerate(context_lens.tolist()):
        q, t = query[query_start[i] : query_start[i + 1]].float(), torch.arange(n)
        block, slot = block_tables[i, t // size].long(), t % size
        k, v = (pool[block, slot].float().repeat_interleave(group, 1) for pool in (key_pool, value_pool))
        s = torch.einsum("qhd,khd->hqk", q, k) * scale
        p = s.masked_fill(~torch.ones(s.shape[1:], dtype=bool).tril(n - len(q)), -torch.inf).softmax(-1)
        out[query_start[i] : query_start[i + 1]] = torch.einsum("hqk,khd->qhd", p, v)
    return out


def at_17_tokens(act: Callable[[], Any]) -> Any:
    def kernel(*tensors, scale):
        if tensors[4].tolist() == [17, 32]:
            act()
        return attend(*tensors, scale=scale)

    return from_function(kernel)


def hang() -> None:
    """With the interpreter's lock held and every signal ignored that can be."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Path("hanging").touch()
    ctypes.PyDLL(None).sleep(OFTEN)


def eat() -> None:
    """Far more than the tests allow, and slowly enough to be seen."""
    kept = []
    for _ in range(60):
        kept.append(bytearray(b"x" * 100_000_000))
        time.sleep(0.02)


def leave_a_child() -> None:
    """In a session of its own, that would outlive everything; then die."""
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({OFTEN})"], start_new_session=True)
    os.abort()


def lose_the_device() -> None:
    torch.cuda.is_initialized = lambda: True

    def synchronize() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.synchronize = synchronize
    synchronize()


segfaults = at_17_tokens(lambda: ctypes.string_at(0))
leaves = at_17_tokens(lambda: os._exit(0))
hangs = at_17_tokens(hang)
eats = at_17_tokens(eat)
leaves_a_child = at_17_tokens(leave_a_child)
loses_the_device = at_17_tokens(lose_the_device)


class DiesAtExit:
    """After its last case."""

    features = frozenset()

    def __init__(self) -> None:
        atexit.register(os._exit, 5)

    def unsupported(self, spec):
        return None

    def plan(self, spec, batch, reuse=None):
        return from_function(attend).plan(spec, batch)


dies_at_exit = DiesAtExit
