"""How a worker came to its end, in words and as a status for the record."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from kvproof_reports.schema import DEATHS

CRASHED, TIMED_OUT, OUT_OF_MEMORY, OUT_OF_DISK, TAMPERED, DEVICE_ERROR = DEATHS
STATUSES = (CRASHED, TIMED_OUT, OUT_OF_MEMORY, OUT_OF_DISK, TAMPERED)
"""Of a worker that was ended; after an error of the device it has still answered."""


@dataclass(frozen=True)
class Death(Exception):
    """The worker ended, or had to be ended, before it answered."""

    status: str
    told: str
    """What happened, in a line."""
    last_words: str = ""
    """The end of what it wrote to its standard error."""

    def __str__(self) -> str:
        return self.told


MOST_LINES = 20


def own_words(text: str) -> str:
    """The end of a standard error without the frames of pytest, which are below each of ours: they tell nothing."""
    start = max(0, text.rfind("Fatal Python error"))
    lines = [line for line in text[start:].splitlines() if not line.startswith("Extension modules:")]
    shown = lines[: next((i for i, line in enumerate(lines) if "/pluggy/" in line), len(lines))]
    return "\n".join(shown[-MOST_LINES:]).strip()


def by_exit(code: int, last_words: str) -> Death:
    """Of a process that has ended by itself, or by somebody else's hand."""
    if code >= 0:
        return Death(CRASHED, f"crashed: it left by itself with exit code {code} in the middle of a case", last_words)
    name = signal.Signals(-code).name if -code in signal.Signals._value2member_map_ else "unknown"
    if -code == signal.SIGKILL:
        return Death(
            OUT_OF_MEMORY,
            "out of memory: killed by SIGKILL, which nobody here has sent; a system that runs out of memory does",
            last_words,
        )
    return Death(CRASHED, f"crashed: killed by signal {-code} ({name})", last_words)
