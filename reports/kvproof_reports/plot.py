"""What all plots share: their data for plotly in the page, selectors, colours, lines with a band."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, log10
from typing import Any

from kvproof_reports.rates import POINT, Estimate

COLOURS = ("#2f7ed8", "#d9792b", "#1f9e76", "#a55cc7", "#cc4b52", "#8a7a1f", "#1295a8", "#d4649f")
"""One for each implementation; told apart by the common kinds of colour blindness, and on white and near-black."""

DASHES = {"dense": "dot", "identity": "dashdot", "shuffled": "dash", "churned": "solid", "shared-prefix": "longdash"}
"""One for each state of the block table, where several are drawn at a time."""

GREY = "#7b8494"

Trace = dict[str, Any]


@dataclass(frozen=True)
class Facet:
    """A selector of a section: it shows the traces and table rows of one of its values, or of all."""

    name: str
    title: str
    values: Sequence[str]
    chosen: str | None = None
    """At first; None: all of them."""
    all: str = ""
    """What the choice of all is called; "" where there is none."""

    def index(self, value: str) -> int:
        return list(self.values).index(value)


@dataclass(frozen=True)
class Plot:
    """Traces for plotly; a trace's ``facets`` (name to index) say under which choices it is drawn."""

    name: str
    title: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        return {"traces": list(self.traces), "layout": dict(self.layout), "title": self.title}


def colours(labels: Sequence[str]) -> dict[str, str]:
    """``labels``: all subjects, so that one keeps its colour from plot to plot."""
    return {label: COLOURS[index % len(COLOURS)] for index, label in enumerate(labels)}


def name_of(label: str, *more: str) -> str:
    """plotly shows markup in names; a name is text."""
    return html.escape(", ".join(filter(None, (label, *more))), quote=False)


def line(
    name: str,
    points: Mapping[int, Estimate],
    colour: str,
    unit: str,
    facets: Mapping[str, int],
    *,
    dash: str = "solid",
    **more: Any,
) -> list[Trace]:
    """Values over the block size, and the band in which they lie."""
    sizes = list(points)
    common = {"facets": dict(facets), "x": sizes, **more}
    drawn = {
        **common,
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "y": [estimate.value for estimate in points.values()],
        "text": [str(estimate) for estimate in points.values()],
        "line": {"color": colour, "dash": dash, "width": 2},
        "hovertemplate": f"block size %{{x}}: %{{text}} {unit}",
    }
    return [band(points, colour, common), drawn] if any(e.kind != POINT for e in points.values()) else [drawn]


def band(points: Mapping[int, Estimate], colour: str, common: Mapping[str, Any]) -> Trace:
    """From low to high, as one closed outline. Of a single size a bar is left, which an outline can't show."""
    sizes, lows, highs = list(points), [e.low for e in points.values()], [e.high for e in points.values()]
    if len(sizes) == 1:
        outline = {"x": sizes * 2, "y": [lows[0], highs[0]], "mode": "lines", "line": {"color": colour, "width": 5}}
        return {**common, **outline, "type": "scatter", "opacity": 0.35, "hoverinfo": "skip", "showlegend": False}
    return {
        **common,
        "type": "scatter",
        "mode": "lines",
        "x": sizes + sizes[::-1],
        "y": highs + lows[::-1],
        "fill": "toself",
        "fillcolor": translucent(colour),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def translucent(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"


GRID = {"gridcolor": "rgba(128,128,128,0.22)", "zeroline": False}


def block_size_axis(sizes: Sequence[int]) -> dict[str, Any]:
    return {
        **GRID,
        "type": "log",
        "title": {"text": "block size, tokens"},
        "tickvals": list(sizes),
        "ticktext": [str(size) for size in sizes],
    }


def value_axis(title: str) -> dict[str, Any]:
    return {**GRID, "title": {"text": title}, "rangemode": "tozero", "automargin": True}


def log_axis(title: str, values: Iterable[float], digits: Sequence[int] = (1, 2, 5)) -> dict[str, Any]:
    """With marks at ``digits`` of each decade."""
    positive = [value for value in values if 0 < value < inf] or [1.0]
    decades = range(floor(log10(min(positive))), ceil(log10(max(positive))) + 1)
    marks = [digit * 10.0**decade for decade in decades for digit in digits]
    ticks = {"tickvals": marks, "ticktext": [f"{mark:,.10g}" for mark in marks]}
    return {**GRID, "type": "log", "title": {"text": title}, "automargin": True, **ticks}
