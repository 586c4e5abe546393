"""Timed rows as curves over the block size: what the plot, the page and the Markdown all show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof_reports.schema import TABLES
from kvproof_reports.verdict import Subject
from kvproof_reports.workload import Key, shape, shape_title

Record = Mapping[str, Any]


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

    title: str
    block_sizes: Sequence[int]
    curves: Sequence[Curve]


def charts(columns: Sequence[Subject]) -> list[Chart]:
    """A chart for each shape of the timed kernel rows, in the order of first appearance."""
    shapes: dict[Key, dict[tuple[str, str], dict[int, Record]]] = {}
    titles: dict[Key, str] = {}
    for subject in columns:
        for record in subject.benchmarks:
            if record["timed"] and record["group"] != "allocator":
                titles.setdefault(shape(record), shape_title(record))
                lines = shapes.setdefault(shape(record), {})
                lines.setdefault((subject.label, record["table"]), {})[record["block_size"]] = record
    return [_chart(titles[key], lines, [subject.label for subject in columns]) for key, lines in shapes.items()]


def _chart(title: str, lines: Mapping[tuple[str, str], Mapping[int, Record]], labels: Sequence[str]) -> Chart:
    ordered = sorted(lines, key=lambda line: (labels.index(line[0]), TABLES.index(line[1])))
    curves = [Curve(label, table, dict(sorted(lines[label, table].items()))) for label, table in ordered]
    return Chart(title, sorted({size for curve in curves for size in curve.points}), curves)


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
                compiled = tuple(tuple(entry.values()) for entry in resources)
                title = record["operation"] or shape_title(record)
                key = (subject.label, title, record["reason"], compiled)
                rows = told.setdefault(key, Untimed(subject.label, title, record["reason"], resources, [], []))
                _add(rows.tables, record["table"])
                _add(rows.block_sizes, record["block_size"])
    return list(told.values())


def _add(seen: list[Any], value: Any) -> None:
    if value is not None and value not in seen:
        seen.append(value)
