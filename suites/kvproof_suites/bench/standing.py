"""Whether an implementation is verified: by the laws of this session, of its results folder, or of a run that is named.

A figure of a kernel that breaks a law is not measured at all; one of which no law was tried is stamped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof_suites.laws.allocators import ALLOCATORS
from kvproof_suites.laws.kernels import KERNELS

LAWS_OF = {"kernel": frozenset(law.id for law in KERNELS), "allocator": frozenset(law.id for law in ALLOCATORS)}
BAD = ("broken", "error")


@dataclass(frozen=True)
class Standing:
    verified: bool
    reason: str | None = None
    """Why it is not verified."""
    broken: bool = False


def standing(laws: Iterable[Mapping[str, Any]], implementation: str, half: str) -> Standing:
    """Of ``implementation``, whose ``half`` ("kernel" or "allocator") is timed, by records of kind "law"."""
    own = [law for law in laws if law["implementation"] == implementation and law["law"] in LAWS_OF[half]]
    if broken := sorted({law["law"] for law in own if law["outcome"] in BAD}):
        return Standing(False, f"law {', '.join(broken)} is broken: what breaks a law is not timed", broken=True)
    if known := sorted({law["law"] for law in own if law["outcome"] == "known_broken"}):
        return Standing(False, f"law {', '.join(known)} is known to be broken")
    if not any(law["outcome"] == "verified" for law in own):
        return Standing(
            False, f"no law of its {half} was verified; run the laws first, or name their run: --verified-by"
        )
    return Standing(True)


def laws_of_run(folder_or_file: Path) -> list[dict[str, Any]]:
    """The records of kind "law" of a run; none where nothing was written yet.

    Raises:
        RecordError: not a results file.
    """
    from kvproof_reports.records import read_run

    path = folder_or_file / "results.jsonl" if folder_or_file.is_dir() else folder_or_file
    if folder_or_file.is_dir() and (not path.exists() or path.stat().st_size == 0):
        return []
    return read_run(folder_or_file).latest("law")
