"""Each chart as a page of its own, drawn by plotly; it opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof_reports.extras import need
from kvproof_reports.plot import COLOURS
from kvproof_suites.paper.claim import Chart

WIDTH, HEIGHT = 900, 440
"""CSS pixels."""


def write_plots(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """``paper-NAME.html`` for each chart.

    Raises:
        MissingExtra: plotly is not installed.
        OSError: ``folder`` can't be written to.
    """
    graph = need("plotly.graph_objects", "report")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for chart in charts:
        path = folder / f"paper-{chart.name}.html"
        figure = graph.Figure(bars(chart) if chart.is_bars else curves(chart), layout(chart))
        text = figure.to_html(include_plotlyjs=True, config={"displayModeBar": False}, default_width=f"{WIDTH}px")
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def curves(chart: Chart) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": list(chart.x),
            "y": list(line),
            "line": {"color": COLOURS[index % len(COLOURS)], "width": 2},
        }
        for index, (name, line) in enumerate(chart.lines.items())
    ]


def bars(chart: Chart) -> list[dict[str, Any]]:
    return [
        {
            "type": "bar",
            "name": name,
            "x": list(chart.x),
            "y": list(line),
            "text": [f"{y:.1f}" for y in line],
            "marker": {"color": COLOURS[index % len(COLOURS)]},
        }
        for index, (name, line) in enumerate(chart.lines.items())
    ]


def layout(chart: Chart) -> dict[str, Any]:
    grid = {"gridcolor": "rgba(128,128,128,0.22)", "zeroline": False}
    ticks = {"type": "log", "tickvals": list(chart.x), "ticktext": [f"{x:,}" for x in chart.x]} if chart.log_x else {}
    return {
        "title": {"text": chart.title, "font": {"size": 16}},
        "barmode": "stack",
        "width": WIDTH,
        "height": HEIGHT,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 64, "r": 16, "t": 48, "b": 56},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "xaxis": {**grid, **ticks, "title": chart.x_title},
        "yaxis": {**grid, "title": chart.y_title, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "traceorder": "normal"},
    }
