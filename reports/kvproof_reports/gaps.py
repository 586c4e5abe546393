"""What was not verified, not run or not timed, and why; what several share is told once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvproof_reports.curves import untimed
from kvproof_reports.verdict import Subject, not_verified


@dataclass
class Gap:
    kind: str
    """An outcome of a law, or "not_timed"."""
    reason: str
    labels: list[str] = field(default_factory=list)
    num_tests: int = 0
    """0 where no test stands behind it."""


KINDS = ("error", "not_run", "not_timed", "refused", "known_broken")
"""In the order in which a reader needs them."""


def gaps(columns: Sequence[Subject], kinds: Sequence[str] = KINDS[:4]) -> list[Gap]:
    """One for each kind and reason, by kind and then most tests first."""
    told: dict[tuple[str, str], Gap] = {}
    for subject in columns:
        for outcome, reason, number in not_verified(subject, kinds):
            _add(told, outcome, reason, subject.label, number)
    for rows in untimed(columns) if "not_timed" in kinds else ():
        _add(told, "not_timed", rows.reason, rows.label, 0)
    return sorted(told.values(), key=lambda gap: (KINDS.index(gap.kind), -gap.num_tests))


def _add(told: dict[tuple[str, str], Gap], kind: str, reason: str, label: str, num_tests: int) -> None:
    gap = told.setdefault((kind, reason), Gap(kind, reason))
    gap.num_tests += num_tests
    if label not in gap.labels:
        gap.labels.append(label)
