"""Throughput against block size, drawn by plotly."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from kvproof_reports.curves import Chart, Curve
from kvproof_reports.extras import need

COLOURS = ("#2f7ed8", "#d9792b", "#1f9e76", "#a55cc7", "#cc4b52", "#8a7a1f", "#1295a8", "#7b8494")
"""One for each implementation; told apart by the common kinds of colour blindness, and on white and near-black."""

DASHES = {"dense": "dot", "identity": "solid", "shuffled": "dash", "churned": "dashdot"}
"""One for each state of the block table. The tables and lines carry both in words too."""

Record = Mapping[str, Any]


def plotly_script() -> str:
    """The whole of plotly.js, to be written into the page once."""
    return str(need("plotly.offline", "report").get_plotlyjs())


def throughput_figure(chart: Chart, labels: Sequence[str]) -> str:
    """The chart as HTML that expects ``plotly_script`` before it. ``labels``: all subjects, so that colours stay."""
    graph = need("plotly.graph_objects", "report")
    colours = {label: COLOURS[index % len(COLOURS)] for index, label in enumerate(labels)}
    figure = graph.Figure([_line(curve, colours[curve.label]) for curve in chart.curves])
    figure.update_layout(**_layout(chart.block_sizes))
    return str(figure.to_html(full_html=False, include_plotlyjs=False, default_height="420px", config=_CONFIG))


_CONFIG = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}


def _line(curve: Curve, colour: str) -> dict[str, Any]:
    points = [record for record in curve.points.values() if record["tokens_per_second"] is not None]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        # plotly shows markup in names; a name is text.
        "name": html.escape(f"{curve.label}, {curve.table}", quote=False),
        "x": [point["block_size"] for point in points],
        "y": [point["tokens_per_second"] for point in points],
        "error_y": {**_quartiles(points), "thickness": 1.2, "width": 3},
        "line": {"color": colour, "dash": DASHES[curve.table], "width": 2},
        "hovertemplate": "block size %{x}: %{y:,.4s} tokens/s",
    }


def _quartiles(points: Sequence[Record]) -> dict[str, Any]:
    """Throughput is the inverse of time, so the quartiles of time change sides."""
    ratios = [(point["tokens_per_second"], point["median_ms"], point["q1_ms"], point["q3_ms"]) for point in points]
    return {
        "array": [rate * (median / fast - 1) if fast else 0 for rate, median, fast, _ in ratios],
        "arrayminus": [rate * (1 - median / slow) if slow else 0 for rate, median, _, slow in ratios],
    }


def _layout(sizes: Sequence[int]) -> dict[str, Any]:
    grid = {"gridcolor": "rgba(128,128,128,0.22)", "zeroline": False}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 64, "r": 12, "t": 12, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "xaxis": {
            **grid,
            "type": "log",
            "title": "block size, tokens",
            "tickvals": sizes,
            "ticktext": [str(s) for s in sizes],
        },
        "yaxis": {**grid, "title": "tokens/s", "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top"},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "rgba(128,128,128,0.6)"},
    }
