"""The sections of a report that hold figures: a heading, what to know, selectors, a plot, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof_reports.capacity import capacities
from kvproof_reports.compare import Comparison
from kvproof_reports.curves import Chart
from kvproof_reports.host_tables import (
    append_times,
    call_facets,
    call_times,
    calls_table,
    replay_table,
    serving_table,
    sides_table,
)
from kvproof_reports.kernel_plots import facets, plan_plot, roofline_plot, throughput_plot
from kvproof_reports.kernel_tables import numbers_table, plan_table, throughput_table
from kvproof_reports.plot import Facet, Plot
from kvproof_reports.rates import INTERVAL, tokens_per_second
from kvproof_reports.run_tables import comparison_table, environment_table
from kvproof_reports.serving_plots import (
    appends_plot,
    calls_plot,
    capacity_facets,
    capacity_plot,
    side_facets,
    sides_plot,
)
from kvproof_reports.tables import Table
from kvproof_reports.two_sides import MODEL, two_sides
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
            "One dot a block size, larger for larger blocks. Below the slope, time goes elsewhere than to memory; "
            "above it, data came from a cache, or the machine was busier while the roof was measured."
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


def serving_sections(found: Sequence[Chart], columns: Sequence[Subject]) -> list[Section]:
    """What block size does to a served traffic: both sides of it, and capacity by itself."""
    labels, replayed = [subject.label for subject in columns], capacities(columns)
    sides = two_sides(found, replayed)
    sections = []
    if sides:
        title = "Best block size"
        plot = sides_plot(sides, labels)
        sections.append(Section("sides", title, MODEL, side_facets(sides), plot, sides_table(sides)))
    table = replay_table(columns)
    if table.rows:
        plot = capacity_plot(replayed, labels)
        hint = (
            "The same requests through each allocator. Waste: slots held without a token. Running: requests at a time."
        )
        hint += "" if sides else " Kernels and replays share no two block sizes here, so that no best one is named."
        chosen = capacity_facets(replayed) if plot else capacity_facets(replayed)[:1]
        sections.append(Section("replay", "Capacity against block size", hint, chosen, plot, table))
    return sections


def other_sections(
    columns: Sequence[Subject], comparison: Comparison | None, sessions: Mapping[str, Mapping[str, Any]]
) -> list[Section]:
    labels = [subject.label for subject in columns]
    sections = [
        Section(
            "allocator",
            "Allocator",
            "Single calls; medians, per token where it applies.",
            call_facets(columns),
            calls_plot(call_times(columns), labels),
            calls_table(columns),
        ),
        Section(
            "serving",
            "Allocators in a serving engine",
            "1,500 requests, 256 at a time. An append is a row of a decode step, its commit included; a step has its "
            "tensors too. Medians of the repeats.",
            plot=appends_plot(append_times(columns), labels),
            table=serving_table(columns),
        ),
    ]
    if comparison is not None:
        hint = f"Ratio of medians to {comparison.columns[0]}; below 1 is faster."
        sections.append(Section("runs", "Run against run", hint, table=comparison_table(comparison)))
    hint = "What differs between the runs comes first." if len(sessions) > 1 else ""
    sections.append(Section("environment", "Environment", hint, table=environment_table(sessions)))
    return [section for section in sections if section.table and section.table.rows]
