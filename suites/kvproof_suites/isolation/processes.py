"""The processes of one worker, found by what it was started with, wherever they have gone since.

A group of processes is not enough: a child may leave it. What it can't leave is the environment it has inherited.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

TOKEN = "KVPROOF_WORKER"
PROC = Path("/proc")
SELDOM = 3
"""Rounds of ending: a process that forks while it is looked for is found in the next."""


def of_worker(token: str) -> list[int]:
    """Ids of the living processes that carry ``token``; none where the system doesn't tell (no /proc)."""
    return [pid for pid in _pids() if _carries(pid, token)]


def end(token: str) -> None:
    """Kill them all, by id."""
    for _ in range(SELDOM):
        if not (left := of_worker(token)):
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def resident_bytes(pids: list[int]) -> int:
    """Memory that the processes hold; shared pages count in each."""
    return sum(map(_resident_bytes, pids))


def _pids() -> Iterator[int]:
    try:
        names = os.listdir(PROC)
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def _carries(pid: int, token: str) -> bool:
    try:
        inherited = (PROC / str(pid) / "environ").read_bytes()
        state = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone, or somebody else's
        return False
    return state != "Z" and f"{TOKEN}={token}".encode() in inherited.split(b"\0")


def _resident_bytes(pid: int) -> int:
    try:
        pages = (PROC / str(pid) / "statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
