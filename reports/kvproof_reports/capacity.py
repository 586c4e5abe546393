"""How many requests fit at a time, and what is wasted, against block size: replays of one traffic in one memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof_reports.verdict import Subject

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Capacity:
    """One allocator under one traffic."""

    label: str
    traffic: str
    """``azure.csv, 2,000 requests, 65,536 tokens of memory``"""
    points: Mapping[int, Record]
    """Block size to replay record, smallest first. All of one traffic and as much memory."""


def capacities(columns: Sequence[Subject]) -> list[Capacity]:
    """In the order of first appearance."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for subject in columns:
        for record in subject.replays:
            found.setdefault((subject.label, traffic_of(record)), {})[record["block_size"]] = record
    return [Capacity(label, traffic, dict(sorted(points.items()))) for (label, traffic), points in found.items()]


def traffic_of(record: Record) -> str:
    """Memory goes in: a pool of as many blocks of another size is another machine."""
    tokens = record["num_blocks"] * record["block_size"]
    return f"{record['trace']}, {record['num_requests']:,} requests, {tokens:,} tokens of memory"
