"""What a worker uses up, looked at every tenth of a second: memory, disk, and room for what it prints."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from kvproof_suites import memory
from kvproof_suites.isolation import processes
from kvproof_suites.isolation.death import OUT_OF_DISK, OUT_OF_MEMORY

SMALLEST_REST = 0.03
"""Share of the machine's memory at which a worker is ended, before the system chooses whom to kill."""
RESERVED_BYTES = 256_000_000
"""Of a disk, for the records of the run; half of what was free where that is less."""
MOST_PRINTED = 100_000_000
"""Bytes in a file that holds its output; of them a report takes the end."""


@dataclass(frozen=True)
class Watch:
    """Over one process of a worker and what it has started."""

    pid: int
    token: str
    memory_bytes: int | None
    """None: until the machine has next to nothing left."""
    reserved: dict[Path, int]
    """Folder to the bytes that must stay free there."""

    def excess(self) -> tuple[str, str] | None:
        """(status, what there is too much of)."""
        if (told := self._memory() or self._machine()) is not None:
            return OUT_OF_MEMORY, f"out of memory: {told}"
        told = self._printed() or self._disk()
        return None if told is None else (OUT_OF_DISK, f"out of disk: {told}")

    def _memory(self) -> str | None:
        if self.memory_bytes is None or (held := self._held()) <= self.memory_bytes:
            return None
        return f"it held {held / 1e9:.1f} GB, and {self.memory_bytes / 1e9:.1f} are allowed (--max-memory)"

    def _machine(self) -> str | None:
        if (found := memory.of_host()) is None:
            return None
        left, total = found
        if left >= SMALLEST_REST * total:
            return None
        return f"it held {self._held() / 1e9:.1f} GB, and the machine had {left / 1e9:.2f} GB left"

    def _held(self) -> int:
        """With its children; its own where the system doesn't tell whose they are."""
        own = processes.resident_bytes([self.pid])
        return max(own, processes.resident_bytes(processes.of_worker(self.token, self.pid)))

    def _printed(self) -> str | None:
        printed = max(_size(self.pid, descriptor) for descriptor in (1, 2))
        if printed <= MOST_PRINTED:
            return None
        return f"it printed {printed / 1e6:,.0f} MB, and {MOST_PRINTED / 1e6:,.0f} are allowed"

    def _disk(self) -> str | None:
        for folder, reserved in self.reserved.items():
            if (free := _free_bytes(folder)) is not None and free < reserved:
                return f"the disk of {folder} had {free / 1e6:,.0f} MB left, and {reserved / 1e6:,.0f} stay free"
        return None


def reserves(folders: list[Path]) -> dict[Path, int]:
    """What must stay free, by what is free now; for a folder that is yet to be made, where it will be."""
    paths = [[folder.absolute(), *folder.absolute().parents] for folder in folders]
    free = {folder: _free_bytes(folder) for folder in (next(filter(Path.exists, path)) for path in paths)}
    return {folder: min(RESERVED_BYTES, now // 2) for folder, now in free.items() if now is not None}


def _free_bytes(folder: Path) -> int | None:
    """None for a folder that is gone."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _size(pid: int, descriptor: int) -> int:
    """Of the file that a process prints into, deleted ones included; 0 for a terminal, and where nobody tells."""
    try:
        return os.stat(processes.PROC / str(pid) / "fd" / str(descriptor)).st_size
    except OSError:
        return 0
