"""Plots of capacity against block size, of its product with the kernel's speed, and of allocators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvproof_reports.capacity import Capacity
from kvproof_reports.plot import (
    GREY,
    GRID,
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
from kvproof_reports.rates import POINT, Estimate
from kvproof_reports.two_sides import SHARES, USUAL_SHARE, Sides

Record = Mapping[str, Any]

MEASURES = {
    "requests at a time": ("mean_running", 1.0),
    "waste, %": ("waste", 100.0),
    "prefix hits, % of prompt tokens": ("hit_rate", 100.0),
    "preemptions": ("num_preemptions", 1.0),
}
"""What may be drawn of a replay: field and factor."""


def distinct(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def capacity_facets(found: Sequence[Capacity]) -> list[Facet]:
    traffic = distinct([capacity.traffic for capacity in found])
    return [
        Facet("traffic", "traffic", traffic, max(found, key=lambda one: len(one.points)).traffic if found else None),
        Facet("measure", "show", list(MEASURES), next(iter(MEASURES))),
    ]


def capacity_plot(found: Sequence[Capacity], labels: Sequence[str]) -> Plot | None:
    """None where no replay was made at two block sizes: the table says all that there is."""
    if all(len(capacity.points) < 2 for capacity in found):
        return None
    (traffic, measure), palette = capacity_facets(found), colours(labels)
    traces: list[Trace] = []
    for capacity in found:
        for title, (name, factor) in MEASURES.items():
            values = {size: r[name] * factor for size, r in capacity.points.items() if r[name] is not None}
            points = {size: Estimate(value, value, value, POINT) for size, value in values.items()}
            chosen = {"traffic": traffic.index(capacity.traffic), "measure": measure.index(title)}
            if points:
                traces += line(name_of(capacity.label), points, palette[capacity.label], title, chosen)
    sizes = sorted({size for capacity in found for size in capacity.points})
    layout = {"xaxis": block_size_axis(sizes), "yaxis": value_axis("")}
    return Plot("capacity", "Capacity against block size", traces, layout)


def side_facets(sides: Sequence[Sides]) -> list[Facet]:
    """Selectors; at first those of the first pair."""
    workloads, traffics = distinct([s.workload for s in sides]), distinct([s.traffic for s in sides])
    allocators = distinct([s.allocator for s in sides])
    return [
        Facet("workload", "kernel timed at", workloads, workloads[0] if workloads else None),
        Facet("traffic", "traffic", traffics, traffics[0] if traffics else None),
        Facet("allocator", "allocator", allocators, allocators[0] if allocators else None),
        Facet("share", "attention's share of a step", [share_title(s) for s in SHARES], share_title(USUAL_SHARE)),
    ]


def share_title(share: float) -> str:
    return f"{100 * share:.0f} %"


def side_choice(found: Sequence[Facet], sides: Sides) -> dict[str, int]:
    values = (sides.workload, sides.traffic, sides.allocator, share_title(sides.share))
    return {facet.name: facet.index(value) for facet, value in zip(found, values, strict=True)}


def sides_plot(sides: Sequence[Sides], labels: Sequence[str]) -> Plot | None:
    """Three panels over one axis: kernel time a token, sequences at a time, tokens/s per device."""
    if not sides:
        return None
    found, palette = side_facets(sides), colours(labels)
    traces: list[Trace] = []
    drawn: set[tuple[str, ...]] = set()
    for one in sides:
        chosen, colour = side_choice(found, one), palette[one.kernel]
        grouped: dict[str, Any] = {"legendgroup": one.kernel}
        traces += line(name_of(one.kernel), one.tokens_per_second, colour, "tokens/s per device", chosen, **grouped)
        traces.append(_best(one, colour, chosen))
        upper = {name: index for name, index in chosen.items() if name != "share"}
        if one.share == USUAL_SHARE:
            hidden: dict[str, Any] = {**grouped, "showlegend": False}
            traces += line(name_of(one.kernel), one.kernel_us, colour, "µs a token", upper, yaxis="y3", **hidden)
            if (key := (one.workload, one.traffic, one.allocator)) not in drawn:
                drawn.add(key)
                running = {size: Estimate(value, value, value, POINT) for size, value in one.running.items()}
                traces += line("", running, GREY, "sequences", upper, yaxis="y2", showlegend=False)
    sizes = sorted({size for one in sides for size in one.tokens_per_second})
    layout = {
        "height": 640,
        "xaxis": {**block_size_axis(sizes), "anchor": "y"},
        "yaxis": {**value_axis("tokens/s per device"), "domain": [0, 0.46]},
        "yaxis2": {**value_axis("sequences"), "domain": [0.52, 0.73]},
        "yaxis3": {**value_axis("µs a token"), "domain": [0.79, 1]},
    }
    return Plot("sides", "The two sides of a block size", traces, layout)


def _best(one: Sides, colour: str, chosen: Mapping[str, int]) -> Trace:
    rate = one.tokens_per_second[one.best]
    return {
        "facets": dict(chosen),
        "type": "scatter",
        "mode": "markers",
        "x": [one.best],
        "y": [rate.value],
        "marker": {"symbol": "star", "size": 15, "color": colour},
        "hovertemplate": f"best: block size {one.best}, {rate} tokens/s",
        "name": "",
        "showlegend": False,
        "legendgroup": one.kernel,
    }


OPERATIONS = {**GRID, "type": "category", "autorange": "reversed", "automargin": True}
"""Names are long: they stand beside their dots and bars, not under them."""


def calls_plot(rows: Sequence[Record], labels: Sequence[str]) -> Plot | None:
    """Times of calls from below a microsecond to milliseconds: dots on a logarithmic axis.

    Args:
        rows: "label", "operation", "estimate" (µs, an Estimate), and "blocks", the index of the selector.
    """
    traces = [
        {**_times(label, mine, "µs a call"), "facets": {"blocks": blocks}, "type": "scatter", "mode": "markers"}
        | {"marker": {"color": colours(labels)[label], "size": 11}}
        for (label, blocks), mine in _grouped(rows, "label", "blocks").items()
    ]
    values = (value for trace in traces for value in trace["x"])
    layout = {"xaxis": log_axis("µs a call", values, digits=(1,)), "yaxis": OPERATIONS}
    return Plot("calls", "Allocator calls", traces, layout) if traces else None


def appends_plot(rows: Sequence[Record], labels: Sequence[str]) -> Plot | None:
    """Times of one kind, which bars compare. ``rows``: "label", "operation", "estimate" (ns)."""
    traces = [
        {
            **_times(label, mine, "ns per append"),
            "facets": {},
            "type": "bar",
            "orientation": "h",
            "marker": {"color": colours(labels)[label]},
        }
        for (label,), mine in _grouped(rows, "label").items()
    ]
    layout = {"xaxis": value_axis("ns per append"), "yaxis": OPERATIONS, "barmode": "group"}
    return Plot("serving", "Time of an append", traces, layout) if traces else None


def _grouped(rows: Sequence[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    found: dict[tuple[Any, ...], list[Record]] = {}
    for row in rows:
        if row["estimate"] is not None:
            found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def _times(label: str, rows: Sequence[Record], unit: str) -> Trace:
    found = [row["estimate"] for row in rows]
    return {
        "name": name_of(label),
        "y": [name_of(row["operation"]) for row in rows],
        "x": [estimate.value for estimate in found],
        "error_x": {
            "symmetric": False,
            "array": [estimate.high - estimate.value for estimate in found],
            "arrayminus": [estimate.value - estimate.low for estimate in found],
            "color": GREY,
            "thickness": 1.2,
            "width": 3,
        },
        "customdata": [str(estimate) for estimate in found],
        "hovertemplate": f"%{{y}}: %{{customdata}} {unit}",
    }
