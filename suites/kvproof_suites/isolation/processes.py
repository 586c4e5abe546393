"""The processes of one worker, found by what it was started with, wherever they have gone since.

A child may leave its group and its session, or be given an environment of its own; what it has of the three tells. One
that has neither, and whose parent has died, is nobody's any more.
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


def of_worker(token: str, session: int | None = None) -> list[int]:
    """Ids of the living processes that carry ``token``, are of ``session``, or are children of one that is or does;
    none where the system doesn't tell (no /proc)."""
    living = dict(_living())
    found = {pid for pid, (_, own) in living.items() if own == session or _carries(pid, token)}
    while more := {pid for pid, (parent, _) in living.items() if parent in found} - found:
        found |= more
    return sorted(found)


def end(token: str, session: int | None = None) -> None:
    """Kill them all, by id."""
    for _ in range(SELDOM):
        if not (left := of_worker(token, session)):
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def resident_bytes(pids: list[int]) -> int:
    """Memory that the processes hold; shared pages count in each."""
    return sum(map(_resident_bytes, pids))


def _living() -> Iterator[tuple[int, tuple[int, int]]]:
    """(id, (id of its parent, of its session)) of each process that is not waited for alone."""
    try:
        names = os.listdir(PROC)
    except OSError:
        return
    for name in filter(str.isdecimal, names):
        try:
            state, parent, _, session = (PROC / name / "stat").read_bytes().rpartition(b")")[2].split()[:4]
        except OSError:  # gone
            continue
        if state != b"Z":
            yield int(name), (int(parent), int(session))


def _carries(pid: int, token: str) -> bool:
    try:
        inherited = (PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone, or somebody else's
        return False
    return f"{TOKEN}={token}".encode() in inherited.split(b"\0")


def _resident_bytes(pid: int) -> int:
    try:
        pages = (PROC / str(pid) / "statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
