"""Who is fastest at each workload, by how much, and whether that can be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvproof_reports.answers import Told, tell
from kvproof_reports.curves import charts
from kvproof_reports.figures import figure, plural
from kvproof_reports.rates import Estimate, time_ms, tokens_per_second
from kvproof_reports.schema import HOST_GROUPS
from kvproof_reports.statistics import CANT_TELL, FASTER, SAME, SLOWER, THRESHOLD
from kvproof_reports.verdict import BROKEN, KNOWN_BROKEN, Subject

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
    second: str = ""
    """The next implementation; "" when it ran alone."""
    told: Told | None = None
    """What the second is, seen from the first."""

    @property
    def answer(self) -> str:
        """ALONE, or what the first is seen from the second: faster, same, can't tell."""
        if self.told is None:
            return ALONE
        return FASTER if self.told.answer == SLOWER else self.told.answer

    @property
    def words(self) -> str:
        """``1.80 times as fast as torch [1.71 to 1.93]``"""
        if self.told is None:
            return "no other was timed"
        waits = ", less waits for a core," if self.told.less_waits else ""
        times = f"{figure(self.told.ratio)} times as fast as {self.second}{waits}"
        if self.told.low is None or self.told.high is None:
            return f"can't tell: {times} by the medians, {self.told.why}"
        interval = f"[{figure(self.told.low)} to {figure(self.told.high)}]"
        if self.answer == FASTER:
            return f"{times} {interval}"
        if self.answer == SAME:
            return f"the same as {self.second} within {100 * THRESHOLD:.0f} % {interval}"
        return f"can't tell: {times} {interval}"


def winners(columns: Sequence[Subject]) -> list[Winner]:
    """One for each workload that has a verified row, at the state of the block table that is nearest to an engine's.

    An implementation that breaks a law can't win: a wrong answer is no faster way to the right one.
    """
    fit = [subject for subject in columns if subject.verdict not in (BROKEN, KNOWN_BROKEN)]
    found = []
    for chart in charts(fit):
        table = chart.usual_table
        entries = {c.label: list(c.points.values()) for c in chart.curves if c.table == table}
        found += _winner(chart.title, table, entries)
    return found + _host(fit)


def _host(columns: Sequence[Subject]) -> list[Winner]:
    """Calls of allocators and the like, by time alone."""
    workloads: dict[str, dict[str, list[Record]]] = {}
    for subject in columns:
        for record in subject.benchmarks:
            if record["timed"] and record["group"] in HOST_GROUPS:
                told = (record["group"], record["operation"], shape_of_host(record), record["device"])
                entries = workloads.setdefault(", ".join(filter(None, told)), {})
                entries.setdefault(subject.label, []).append(record)
    return [winner for workload, entries in workloads.items() for winner in _winner(workload, "", entries)]


def shape_of_host(record: Record) -> str:
    """Of the batch that a call was made for, where it is told."""
    batch, context_len = record["batch"], record["context_len"]
    if batch is None:
        return ""
    return f"{batch:,} sequences" + (f" of {context_len:,} tokens" if context_len is not None else "")


def _winner(workload: str, table: str, entries: Mapping[str, Sequence[Record]]) -> list[Winner]:
    """One, or none where nothing is verified. Each implementation enters with its fastest row."""
    verified = {label: [r for r in rows if r["verified"] and r["median_ms"]] for label, rows in entries.items()}
    best = {label: min(rows, key=_cost) for label, rows in verified.items() if rows}
    ranked = sorted(best, key=lambda label: _cost(best[label]))
    if not ranked:
        return []
    first = best[ranked[0]]
    common = (workload, table, ranked[0], first["block_size"], *_figure(first))
    if len(ranked) == 1:
        return [Winner(*common)]
    return [Winner(*common, ranked[1], _against(first, best[ranked[1]]))]


def _cost(record: Record) -> float:
    """An append of the serving workload is what its rows are for; all others are compared by their time."""
    return float(record["ns_per_append"] or record["median_ms"])


def _figure(record: Record) -> tuple[Estimate, str]:
    time, rate = time_ms(record), tokens_per_second(record)
    assert time is not None
    if rate is not None:
        return rate, "tokens/s"
    for name, unit in (("ns_per_append", "ns an append"), ("ns_per_token", "ns a token")):
        if record[name]:
            return time.scaled(record[name] / time.value), unit
    return time.scaled(1e3), "µs a call"


def _against(first: Record, second: Record) -> Told:
    """Of the serving workload whole repeats are kept, and no samples: nothing can be told of an append."""
    if first["ns_per_append"] and second["ns_per_append"]:
        ratio = second["ns_per_append"] / first["ns_per_append"]
        return Told(CANT_TELL, ratio, None, None, f"but {plural(first['num_samples'], 'repeat')} tell too little")
    told = tell(first, second)
    if not (first["samples_ms"] and second["samples_ms"]):
        return replace(told, why="but the run kept no samples")
    return replace(told, why=f"but {told.why}")
