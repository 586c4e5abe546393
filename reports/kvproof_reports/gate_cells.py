"""What a gate compares: the tests and benchmarks of one or more runs that count as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof_reports.records import Run
from kvproof_reports.samples import together
from kvproof_reports.verdict import WORST_FIRST
from kvproof_reports.workload import workload

Record = Mapping[str, Any]
Key = tuple[Any, ...]

RAN = ("verified", "broken", "known_broken")
"""Outcomes of a test that was settled by running it."""


@dataclass(frozen=True)
class Cells:
    tests: Mapping[Key, Record]
    """(implementation, law, test) to the record with the worst outcome of all runs."""
    benchmarks: Mapping[Key, Record]
    """(implementation, workload) to one record with the samples of all runs."""

    def __bool__(self) -> bool:
        return bool(self.tests or self.benchmarks)

    @property
    def implementations(self) -> list[str]:
        return list(dict.fromkeys(key[0] for key in (*self.tests, *self.benchmarks)))

    def only(self, names: Iterable[str]) -> Cells:
        """Those of some implementations."""
        kept = set(names)
        return Cells(
            {key: record for key, record in self.tests.items() if key[0] in kept},
            {key: record for key, record in self.benchmarks.items() if key[0] in kept},
        )

    def timed(self) -> dict[Key, Record]:
        return {key: record for key, record in self.benchmarks.items() if record["timed"]}


def cells_of(runs: Sequence[Run]) -> Cells:
    """Of all runs together: of a test the worst outcome counts, of a benchmark every sample, as of one more process."""
    tests: dict[Key, list[Record]] = {}
    benchmarks: dict[Key, list[Record]] = {}
    for run in runs:
        for record in run.latest("law"):
            tests.setdefault((record["implementation"], record["law"], _test_name(record["test"])), []).append(record)
        for record in run.latest("benchmark"):
            benchmarks.setdefault((record["implementation"], workload(record)), []).append(record)
    return Cells(
        {key: min(found, key=lambda record: WORST_FIRST.index(record["outcome"])) for key, found in tests.items()},
        {key: _together(found) for key, found in benchmarks.items()},
    )


def _together(found: Sequence[Record]) -> Record:
    timed = [record for record in found if record["timed"]]
    return together(timed) if timed else found[-1]


def _test_name(node_id: str) -> str:
    """The same from whichever folder pytest was started: with the name of the file, and not its path."""
    path, _, test = node_id.partition("::")
    return f"{path.rpartition('/')[2]}::{test}"
