"""Benchmarks of several runs, side by side, and what each is, seen from the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof_reports.answers import Told, tell
from kvproof_reports.records import Run
from kvproof_reports.statistics import CONFIDENCE, THRESHOLD
from kvproof_reports.verdict import Subject, subjects
from kvproof_reports.workload import WORKLOAD, workload


@dataclass
class Row:
    """One benchmark in every column that timed it."""

    workload: dict[str, Any]
    """Its identity: group, block_size, table, batch, ..., and the implementation when runs are the columns."""
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    baseline: str = ""

    @property
    def median_ms(self) -> dict[str, float]:
        return {column: record["median_ms"] for column, record in self.records.items()}

    @property
    def ratio(self) -> dict[str, float]:
        """Median over the baseline's median, by column; below 1 is faster. Empty without a baseline figure."""
        base = self.median_ms.get(self.baseline)
        return {column: median / base for column, median in self.median_ms.items()} if base else {}

    def answers(self, threshold: float = THRESHOLD, confidence: float = CONFIDENCE) -> dict[str, Told]:
        """Faster, same, slower or can't tell, by column; empty without a baseline figure."""
        base = self.records.get(self.baseline)
        others = {column: record for column, record in self.records.items() if column != self.baseline}
        return {} if base is None else {name: tell(base, one, threshold, confidence) for name, one in others.items()}


@dataclass(frozen=True)
class Comparison:
    columns: Sequence[str]
    """The first is the baseline."""
    rows: Sequence[Row]


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """The same implementation before and after: a column is a run."""
    return _compare(subjects(runs), lambda subject: (subject.run_label, subject.name))


def compare_implementations(runs: Sequence[Run]) -> Comparison:
    """Implementations against each other: a column is an implementation (of a run, when names clash)."""
    return _compare(subjects(runs), lambda subject: (subject.label, None))


def _compare(found: Sequence[Subject], place: Callable[[Subject], tuple[str, str | None]]) -> Comparison:
    """``place``: the column of a subject, and the implementation that its rows are for (None: any)."""
    columns = list(dict.fromkeys(place(subject)[0] for subject in found))
    rows: dict[tuple[Any, ...], Row] = {}
    for subject in found:
        column, implementation = place(subject)
        for record in subject.benchmarks:
            if record["timed"]:
                row = rows.setdefault((implementation, *workload(record)), _row(record, implementation, columns[0]))
                row.records[column] = record
    return Comparison(columns, list(rows.values()))


def _row(record: Mapping[str, Any], implementation: str | None, baseline: str) -> Row:
    named = {} if implementation is None else {"implementation": implementation}
    return Row({**named, **{name: record[name] for name in WORKLOAD}}, baseline=baseline)
