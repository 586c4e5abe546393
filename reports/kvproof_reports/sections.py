"""The sections of a report that hold figures: a heading, what to know, selectors, a plot, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof_reports.compare import Comparison
from kvproof_reports.curves import Chart
from kvproof_reports.kernel_plots import facets, plan_plot, roofline_plot, throughput_plot
from kvproof_reports.kernel_tables import numbers_table, plan_table, throughput_table
from kvproof_reports.other_tables import (
    calls_table,
    comparison_table,
    environment_table,
    replay_table,
    serving_table,
)
from kvproof_reports.plot import Facet, Plot
from kvproof_reports.rates import INTERVAL, tokens_per_second
from kvproof_reports.tables import Table
from kvproof_reports.verdict import Subject


@dataclass(frozen=True)
class Section:
    name: str
    """Its anchor."""
    title: str
    hint: str
    facets: Sequence[Facet] = ()
    plot: Plot | None = None
    table: Table | None = None
    details: Table | None = None
    """A table that is opened on demand."""


def kernel_sections(found: Sequence[Chart], labels: Sequence[str]) -> list[Section]:
    if not found:
        return []
    chosen = facets(found)
    sections = [
        Section(
            "throughput",
            "Throughput against block size",
            f"Tokens/s at the median launch, planning apart. {_band(found)} The memory roof is the rate at which the "
            "launch's bytes would move as fast as memory was seen to in the same run.",
            chosen,
            throughput_plot(found, labels),
            throughput_table(found),
            numbers_table(found),
        )
    ]
    if (roofline := roofline_plot(found, labels)) is not None:
        hint = (
            "One dot a block size; a larger dot is a larger block. Below the slope, time goes elsewhere than to memory."
        )
        sections.append(Section("roofline", "Roofline", hint, chosen, roofline))
    if (plan := plan_plot(found, labels)) is not None:
        hint = "Host work of one batch beside one launch. A model of n layers launches n times for each plan."
        sections.append(Section("plan", "Plan against run", hint, chosen, plan, details=plan_table(found)))
    return sections


def _band(found: Sequence[Chart]) -> str:
    """What the bands are: a run of today records intervals, an older one quartiles."""
    rates = [tokens_per_second(record) for chart in found for curve in chart.curves for record in curve.points.values()]
    kinds = {rate.kind for rate in rates if rate is not None}
    if kinds == {INTERVAL}:
        return "Bands are 95 % intervals of the median."
    if INTERVAL in kinds:
        return "Bands are 95 % intervals of the median, and quartiles where a run recorded no interval."
    return "Bands reach from quartile to quartile of the samples: this run recorded no intervals."


def other_sections(
    columns: Sequence[Subject], comparison: Comparison | None, sessions: Mapping[str, Mapping[str, Any]]
) -> list[Section]:
    sections = [
        Section(
            "replay",
            "Trace replay",
            "The same requests through each allocator. Waste: slots held without a token. Running: requests at a time.",
            table=replay_table(columns),
        ),
        Section(
            "allocator", "Allocator", "Single calls; medians, per token where it applies.", table=calls_table(columns)
        ),
        Section(
            "serving",
            "Allocators in a serving engine",
            "1,500 requests, 256 at a time. An append is a row of a decode step, its commit included; a step has its "
            "tensors too. Medians of the repeats.",
            table=serving_table(columns),
        ),
    ]
    if comparison is not None:
        hint = f"Ratio of medians to {comparison.columns[0]}; below 1 is faster."
        sections.append(Section("runs", "Run against run", hint, table=comparison_table(comparison)))
    hint = "What differs between the runs comes first." if len(sessions) > 1 else ""
    sections.append(Section("environment", "Environment", hint, table=environment_table(sessions)))
    return [section for section in sections if section.table and section.table.rows]
