"""Plots of kernels: throughput against block size, the roofline, planning against running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any

from kvproof_reports.curves import Chart, Curve, reality, roof_line
from kvproof_reports.figures import figure, percent
from kvproof_reports.plot import (
    DASHES,
    GREY,
    Facet,
    Plot,
    Trace,
    block_size_axis,
    colours,
    line,
    log_axis,
    name_of,
    value_axis,
)
from kvproof_reports.rates import POINT, Estimate, time_ms, tokens_per_second
from kvproof_reports.roofline import ridge, work

Record = Mapping[str, Any]


def facets(charts: Sequence[Chart]) -> list[Facet]:
    """Selectors for workload, state of the block table, and how it was timed."""
    workloads = _distinct(chart.workload for chart in charts)
    tables = sorted(_distinct(curve.table for chart in charts for curve in chart.curves if curve.table), key=reality)
    conditions = _distinct(chart.condition for chart in charts)
    return [
        Facet("workload", "workload", workloads, workloads[0] if workloads else None),
        Facet("table", "block table", tables, tables[0] if tables else None, all="all states"),
        Facet("timed", "timed", conditions, conditions[0] if conditions else None),
    ]


def choice(found: Sequence[Facet], chart: Chart, curve: Curve | None = None) -> dict[str, int]:
    """Under which choices a chart, or a curve of it, is shown."""
    workload, table, timed = found
    chosen = {"workload": workload.index(chart.workload), "timed": timed.index(chart.condition)}
    # Some launches go through no table: they are shown whatever is chosen.
    return {**chosen, "table": table.index(curve.table)} if curve is not None and curve.table else chosen


def throughput_plot(charts: Sequence[Chart], labels: Sequence[str]) -> Plot:
    found, palette = facets(charts), colours(labels)
    traces: list[Trace] = []
    for chart in charts:
        for curve in chart.curves:
            rates = {size: tokens_per_second(record) for size, record in curve.points.items()}
            traces += line(
                name_of(curve.label, curve.table),
                {size: rate for size, rate in rates.items() if rate is not None},
                palette[curve.label],
                "tokens/s",
                choice(found, chart, curve),
                dash=DASHES.get(curve.table, "solid"),
            )
        roof = {size: Estimate(rate, rate, rate, POINT) for size, rate in roof_line(chart).items()}
        if roof:
            traces += line("memory roof", roof, GREY, "tokens/s", choice(found, chart), dash="longdashdot")
    layout = {"xaxis": block_size_axis(_sizes(charts)), "yaxis": value_axis("tokens/s")}
    return Plot("throughput", "Throughput against block size", traces, layout)


def plan_plot(charts: Sequence[Chart], labels: Sequence[str]) -> Plot | None:
    """Host time of planning a batch beside the launches that it serves; None where no plan was timed."""
    found, palette = facets(charts), colours(labels)
    traces: list[Trace] = []
    for chart in charts:
        for curve in chart.curves:
            plans = {size: r["plan_ms"] for size, r in curve.points.items() if r.get("plan_ms")}
            if not plans:
                continue
            planned = {size: Estimate(value, value, value, POINT) for size, value in plans.items()}
            runs = {size: time_ms(record) for size, record in curve.points.items()}
            launched = {size: run for size, run in runs.items() if run is not None}
            chosen = choice(found, chart, curve)
            traces += line(name_of(curve.label, "one launch"), launched, palette[curve.label], "ms", chosen)
            traces += line(name_of(curve.label, "plan"), planned, palette[curve.label], "ms", chosen, dash="dot")
    layout = {
        "xaxis": block_size_axis(_sizes(charts)),
        "yaxis": log_axis("ms", (y for trace in traces for y in trace["y"])),
    }
    return Plot("plan", "Plan against run", traces, layout) if traces else None


def roofline_plot(charts: Sequence[Chart], labels: Sequence[str]) -> Plot | None:
    """Work done a second over work a byte; None where the records don't tell the bytes."""
    found, palette = facets(charts), colours(labels)
    traces: list[Trace] = []
    roofs: list[tuple[dict[str, int], float, list[float]]] = []
    for chart in charts:
        seen: list[tuple[float, float]] = []
        for curve in chart.curves:
            placed = [(size, at, r) for size, r in curve.points.items() if (at := work(r)) is not None]
            if placed:
                traces.append(_dots(chart, curve, placed, palette[curve.label], choice(found, chart, curve)))
                seen += [(at.intensity, r["roof_gb_per_second"]) for _, at, r in placed if r["roof_gb_per_second"]]
        if seen:
            roofs.append((choice(found, chart), max(roof for _, roof in seen), [at for at, _ in seen]))
    traces += [_ridge(*roof) for roof in roofs]
    layout = {
        "xaxis": log_axis("FLOP a byte", (x for trace in traces for x in trace["x"])),
        "yaxis": log_axis("GFLOP/s", (y for trace in traces for y in trace["y"])),
    }
    return Plot("roofline", "Roofline", traces, layout) if traces else None


def _dots(
    chart: Chart, curve: Curve, placed: Sequence[tuple[int, Any, Record]], colour: str, chosen: Mapping[str, int]
) -> Trace:
    return {
        "facets": dict(chosen),
        "type": "scatter",
        "mode": "markers",
        "name": name_of(curve.label, curve.table),
        "x": [at.intensity for _, at, _ in placed],
        "y": [at.gflops_per_second for _, at, _ in placed],
        "text": [
            f"block size {size}: {figure(at.gflops_per_second)} GFLOP/s, {figure(r['gb_per_second'])} GB/s, "
            f"{percent(r['share_of_roof'])} of the roof"
            for size, at, r in placed
        ],
        # A larger dot is a larger block.
        "marker": {"color": colour, "size": [6 + 2 * log10(size) * 3 for size, _, _ in placed], "opacity": 0.8},
        "hovertemplate": "%{text}",
    }


def _ridge(chosen: Mapping[str, int], roof_gb_per_second: float, intensities: Sequence[float]) -> Trace:
    xs, ys = ridge(roof_gb_per_second, intensities)
    return {
        "facets": dict(chosen),
        "type": "scatter",
        "mode": "lines",
        "name": f"memory, {figure(roof_gb_per_second)} GB/s",
        "x": xs,
        "y": ys,
        "line": {"color": GREY, "dash": "longdashdot", "width": 2},
        "hoverinfo": "skip",
    }


def _sizes(charts: Sequence[Chart]) -> list[int]:
    return sorted({size for chart in charts for size in chart.block_sizes})


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
