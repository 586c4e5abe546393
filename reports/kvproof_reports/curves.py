"""Timed rows as curves over the block size: what the plots, the page and the Markdown all show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kvproof_reports.rates import tokens_per_second
from kvproof_reports.schema import KERNEL_GROUPS, TABLES
from kvproof_reports.verdict import Subject
from kvproof_reports.workload import CONDITION, Key, condition_title, shape, shape_title

Record = Mapping[str, Any]

MOST_REAL = ("churned", "shared-prefix", "shuffled", "identity", "dense")
"""States of a block table, what an engine meets first."""


@dataclass(frozen=True)
class Curve:
    """One implementation with one state of the block table."""

    label: str
    table: str
    points: Mapping[int, Record]
    """Block size to record, smallest first."""

    @property
    def best(self) -> int | None:
        """The block size with the highest median throughput."""
        rates = {size: r["tokens_per_second"] for size, r in self.points.items() if r["tokens_per_second"] is not None}
        return max(rates, key=rates.__getitem__, default=None)


@dataclass(frozen=True)
class Chart:
    """Curves that may be compared: all else but implementation, table and block size is equal."""

    workload: str
    condition: str
    """How it was timed, such as "cold, eager"; "" where a run does not say."""
    block_sizes: Sequence[int]
    curves: Sequence[Curve]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.workload, self.condition)))

    @property
    def usual_table(self) -> str:
        """The state of the block table that is nearest to what an engine meets, of those that were timed."""
        return min((curve.table for curve in self.curves), key=reality)


def charts(columns: Sequence[Subject]) -> list[Chart]:
    """A chart for each shape of the timed kernel rows: decoding first, then in the order of first appearance."""
    shapes: dict[Key, dict[tuple[str, str], dict[int, Record]]] = {}
    titles: dict[Key, tuple[str, str]] = {}
    for subject in columns:
        for record in subject.benchmarks:
            if record["timed"] and record["group"] in KERNEL_GROUPS:
                key = (shape(record), *(record.get(name) for name in CONDITION))
                titles.setdefault(key, (shape_title(record), condition_title(record)))
                lines = shapes.setdefault(key, {})
                lines.setdefault((subject.label, record["table"] or ""), {})[record["block_size"]] = record
    ordered = sorted(shapes, key=lambda key: KERNEL_GROUPS.index(key[0][0]))
    return [_chart(*titles[key], shapes[key], [subject.label for subject in columns]) for key in ordered]


def _chart(
    workload: str, condition: str, lines: Mapping[tuple[str, str], Mapping[int, Record]], labels: Sequence[str]
) -> Chart:
    ordered = sorted(lines, key=lambda line: (labels.index(line[0]), _place(line[1])))
    curves = [Curve(label, table, dict(sorted(lines[label, table].items()))) for label, table in ordered]
    return Chart(workload, condition, sorted({size for curve in curves for size in curve.points}), curves)


MOST_ROWS = 6000
"""That one page draws; with more it would be too heavy to open on a phone, or to attach."""


def drawn(found: Sequence[Chart]) -> list[Chart]:
    """As many charts as a page can hold, in their order, but first each workload as it was timed first."""
    first = {chart.workload: chart for chart in reversed(found)}
    ordered = sorted(found, key=lambda chart: first[chart.workload] is not chart)
    ends = accumulate(sum(len(curve.points) for curve in chart.curves) for chart in ordered)
    kept = [id(chart) for chart, end in zip(ordered, ends, strict=True) if end <= MOST_ROWS]
    return [chart for chart in found if id(chart) in kept] or list(found[:1])


def _place(table: str) -> int:
    return TABLES.index(table) if table in TABLES else len(TABLES)


def reality(table: str) -> int:
    """The smaller, the nearer to what an engine meets."""
    return MOST_REAL.index(table) if table in MOST_REAL else len(MOST_REAL)


def roof_line(chart: Chart) -> dict[int, float]:
    """Block size to the tokens/s at which all bytes would move as fast as memory was seen to."""
    found: dict[int, list[float]] = {}
    for curve in chart.curves:
        for size, record in curve.points.items():
            rate, used = tokens_per_second(record), record["share_of_roof"]
            if rate is not None and used:
                found.setdefault(size, []).append(rate.value / used)
    return {size: max(rates) for size, rates in sorted(found.items())}


@dataclass(frozen=True)
class Untimed:
    """Rows without figures that share their reason and what the compiler says of them."""

    label: str
    title: str
    reason: str
    resources: Sequence[Record]
    tables: list[str]
    block_sizes: list[int]


def untimed(columns: Sequence[Subject]) -> list[Untimed]:
    """What was not timed, rows that say the same told once."""
    told: dict[tuple[Any, ...], Untimed] = {}
    for subject in columns:
        for record in subject.benchmarks:
            if not record["timed"]:
                resources = record["resources"] or []
                compiled = tuple(tuple(map(str, entry.values())) for entry in resources)
                title = record["operation"] or shape_title(record)
                key = (subject.label, title, record["reason"], compiled)
                rows = told.setdefault(key, Untimed(subject.label, title, record["reason"], resources, [], []))
                _add(rows.tables, record["table"])
                _add(rows.block_sizes, record["block_size"])
    return list(told.values())


def _add(seen: list[Any], value: Any) -> None:
    if value is not None and value not in seen:
        seen.append(value)
