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

from selftest.wrong.right_kernel import RightKernel

OFTEN = 10**6


class Hostile(RightKernel):
    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def plan(self, spec, batch, reuse=None):
        launch = super().plan(spec, batch, reuse)

        def launch_and_act(*given):
            if list(batch.context_lens_host) == [17, 32]:
                self.act()
            return launch(*given)

        return launch_and_act


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


segfaults = Hostile(lambda: ctypes.string_at(0))
leaves = Hostile(lambda: os._exit(0))
hangs = Hostile(hang)
eats = Hostile(eat)
leaves_a_child = Hostile(leave_a_child)
loses_the_device = Hostile(lose_the_device)


class DiesAtExit(RightKernel):
    """After its last case."""

    def __init__(self) -> None:
        atexit.register(os._exit, 5)


dies_at_exit = DiesAtExit
