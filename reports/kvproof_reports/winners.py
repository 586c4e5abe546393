"""Who is fastest at each workload, by how much, and whether that can be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof_reports.answers import tell
from kvproof_reports.curves import charts
from kvproof_reports.figures import figure
from kvproof_reports.rates import Estimate, time_ms, tokens_per_second
from kvproof_reports.statistics import CANT_TELL, FASTER, SAME, THRESHOLD
from kvproof_reports.verdict import Subject

Record = Mapping[str, Any]

ALONE = "alone"


@dataclass(frozen=True)
class Winner:
    """The fastest verified row of a workload, and what it is beside the fastest of the next implementation."""

    workload: str
    table: str
    label: str
    block_size: int
    figure: Estimate
    unit: str
    second: str
    """The next implementation; "" when it ran alone."""
    answer: str
    """ALONE, or what the first is seen from the second: faster, same, can't tell."""
    speedup: float | None = None
    """Time of the second over time of the first."""
    low: float | None = None
    high: float | None = None

    @property
    def told(self) -> str:
        """``1.80 times as fast as torch [1.71 to 1.93]``"""
        if self.answer == ALONE:
            return "no other was timed"
        interval = "" if self.low is None or self.high is None else f" [{figure(self.low)} to {figure(self.high)}]"
        ratio = f"{figure(self.speedup)} times as fast as {self.second}{interval}"
        if self.answer == FASTER:
            return ratio
        if self.answer == SAME:
            return f"the same as {self.second}, within {100 * THRESHOLD:.0f} %{interval}"
        return f"can't tell from {self.second}: {ratio if self.speedup else ''}"


def winners(columns: Sequence[Subject]) -> list[Winner]:
    """One for each workload that has a verified row, at the state of the block table that is nearest to an engine's."""
    found = []
    for chart in charts(columns):
        table = chart.usual_table
        entries = {c.label: list(c.points.values()) for c in chart.curves if c.table == table}
        ranked = _ranked(entries)
        if ranked:
            found.append(_winner(chart.title, table, ranked))
    return found + _allocators(columns)


def _allocators(columns: Sequence[Subject]) -> list[Winner]:
    """By ns: of an append in the serving workload, of a token elsewhere."""
    entries: dict[str, dict[str, list[Record]]] = {}
    for subject in columns:
        for record in subject.benchmarks:
            if record["timed"] and record["group"] == "allocator" and _ns(record):
                workload = f"allocator, {record['operation']}, {record['device']}"
                entries.setdefault(workload, {}).setdefault(subject.label, []).append(record)
    ranked = {workload: _ranked(found, _ns) for workload, found in entries.items()}
    return [_winner(workload, "", found) for workload, found in ranked.items() if found]


def _ns(record: Record) -> float | None:
    return record["ns_per_append"] or record["ns_per_token"]


def _ranked(
    entries: Mapping[str, Sequence[Record]], measure: Any = lambda r: r["median_ms"]
) -> list[tuple[str, Record]]:
    """Each implementation with its fastest verified row, fastest first. What is not verified can't win."""
    verified = {label: [r for r in rows if r["verified"] and measure(r)] for label, rows in entries.items()}
    best = {label: min(rows, key=measure) for label, rows in verified.items() if rows}
    return sorted(best.items(), key=lambda entry: measure(entry[1]))


def _winner(workload: str, table: str, ranked: Sequence[tuple[str, Record]]) -> Winner:
    label, first = ranked[0]
    shown, unit = _figure(first)
    if len(ranked) == 1:
        return Winner(workload, table, label, first["block_size"], shown, unit, "", ALONE)
    second_label, second = ranked[1]
    answer, speedup, low, high = _against(second, first)
    return Winner(workload, table, label, first["block_size"], shown, unit, second_label, answer, speedup, low, high)


def _figure(record: Record) -> tuple[Estimate, str]:
    rate, ns, time = tokens_per_second(record), _ns(record), time_ms(record)
    if rate is not None:
        return rate, "tokens/s"
    assert time is not None
    if ns:
        scale = ns / time.value
        return Estimate(ns, time.low * scale, time.high * scale, time.kind), "ns"
    return time, "ms"


def _against(second: Record, first: Record) -> tuple[str, float | None, float | None, float | None]:
    """The answer, the speedup and its interval; without samples of both nothing is told."""
    found = tell(second, first)
    if found.low is None or found.high is None:
        return CANT_TELL, 1 / found.ratio, None, None
    return found.answer, 1 / found.ratio, 1 / found.high, 1 / found.low
