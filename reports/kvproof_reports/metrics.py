"""A run as metrics for a tracking server: names, values and steps. Knows nothing of MLflow's API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvproof_reports.verdict import Subject, matrix
from kvproof_reports.workload import shape_code

Record = Mapping[str, Any]

DIGITS = 6
"""Significant ones of a measured figure; the rest is noise, and reads badly."""

KERNEL = (
    "tokens_per_second",
    "gb_per_second",
    "share_of_roof",
    "tax",
    "median_ms",
    "q1_ms",
    "q3_ms",
    "plan_ms",
    "step_ms",
)
ALLOCATOR = (
    "ns_per_token",
    "median_ms",
    "ns_per_append",
    "ns_per_append_stable",
    "us_per_admit",
    "us_per_admit_p99",
    "us_per_free",
    "us_per_step",
    "bytes_per_block",
)
REPLAY = (
    "waste",
    "mean_running",
    "peak_running",
    "num_preemptions",
    "num_finished",
    "num_rejected",
    "hit_rate",
    "allocator_seconds",
)

MAX_NAME = 250


@dataclass(frozen=True)
class Point:
    name: str
    value: float
    step: int
    """The block size, so that a server's own chart shows throughput against block size; 0 for laws."""
    time_ms: int


def metric_name(text: str) -> str:
    """Only what MLflow allows: ASCII letters, digits, and ``_ - . space : /``, no path tricks."""
    parts = [re.sub(r"[^A-Za-z0-9_\-. :]", "_", part).lstrip(".") or "_" for part in text.split("/")]
    return "/".join(parts)[:MAX_NAME]


def points(subject: Subject) -> list[Point]:
    """Every figure of one implementation."""
    return [*_laws(subject), *_series(subject.benchmarks, _benchmark_series), *_series(subject.replays, _replay_series)]


def _laws(subject: Subject) -> list[Point]:
    if not subject.laws:
        return []
    time_ms = max(_time_ms(record) for record in subject.laws)
    counted = {f"laws_{outcome}": float(number) for outcome, number in subject.counts.items()}
    ratios = {
        f"error_to_bound/{row.law}": cell.error_to_bound
        for row in matrix([subject])
        for cell in row.cells.values()
        if cell.error_to_bound is not None
    }
    return [Point(metric_name(name), value, 0, time_ms) for name, value in {**counted, **ratios}.items()]


def _benchmark_series(record: Record) -> tuple[str, str, Sequence[str]]:
    if record["group"] == "allocator":
        return "allocator", f"{record['operation']}", ALLOCATOR
    return str(record["group"]), str(record["table"] or record["operation"] or "all"), KERNEL


def _replay_series(record: Record) -> tuple[str, str, Sequence[str]]:
    return "replay", str(record["trace"]), REPLAY


def _series(records: Iterable[Record], series: Any) -> list[Point]:
    """``group_field/state``; where a run has several shapes of one series, the shape is added to tell them apart."""
    rows = [(record, *series(record)) for record in records]
    variants: dict[tuple[str, str], set[str]] = {}
    for record, group, state, _ in rows:
        variants.setdefault((group, state), set()).add(_variant(record))
    return [
        Point(
            _name(group, field, state, record, variants),
            _figure(record[field]),
            record["block_size"] or 0,
            _time_ms(record),
        )
        for record, group, state, fields in rows
        for field in fields
        if record[field] is not None
    ]


def _figure(value: float) -> float:
    """Counts stay as they are."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else float(value)


def _name(group: str, field: str, state: str, record: Record, variants: Mapping[tuple[str, str], set[str]]) -> str:
    name = f"{group}_{field}/{state.replace('/', '_')}"
    return metric_name(f"{name}/{_variant(record)}" if len(variants[group, state]) > 1 else name)


def _variant(record: Record) -> str:
    if record["kind"] == "replay":
        return f"{record['num_requests']} requests {record['num_blocks']} blocks"
    return shape_code(record)


def _time_ms(record: Record) -> int:
    return int(datetime.fromisoformat(record["time_utc"]).timestamp() * 1000)
