"""The tables behind the plots of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvproof_reports.curves import Chart, Curve, Untimed
from kvproof_reports.kernel_plots import choice, facets
from kvproof_reports.rates import INTERVAL, time_ms, tokens_per_second
from kvproof_reports.tables import Column, Table, number, share, text

Record = Mapping[str, Any]

FACETS = ("workload", "table", "timed")

VERIFIED, NOT_VERIFIED = "verified", "not verified"


def throughput_table(charts: Sequence[Chart]) -> Table:
    """A row for each curve, a column for each block size."""
    sizes = sorted({size for chart in charts for size in chart.block_sizes})
    curves = [(chart, curve) for chart in charts for curve in chart.curves]
    shown = [
        text("implementation", "tokens/s by block size"),
        text("table_title", "block table"),
        *(number(str(size), str(size), f"tokens/s with blocks of {size}") for size in sizes),
        Column("laws", "laws", tag=True),
        text("workload_title", "workload"),
    ]
    marks = {(index, str(curve.best)): "best" for index, (_, curve) in enumerate(curves)}
    marks |= {(index, "workload_title"): "soft" for index in range(len(curves))}
    return Table("throughput", shown, [_curve_row(charts, *pair) for pair in curves], FACETS, marks)


def _curve_row(charts: Sequence[Chart], chart: Chart, curve: Curve) -> dict[str, Any]:
    unverified = [str(size) for size, record in curve.points.items() if not record["verified"]]
    rates = {str(size): tokens_per_second(record) for size, record in curve.points.items()}
    return {
        **choice(facets(charts), chart, curve),
        "workload_title": chart.title,
        "implementation": curve.label,
        "table_title": curve.table,
        **rates,
        "laws": f"{NOT_VERIFIED}: {', '.join(unverified)}" if unverified else VERIFIED,
    }


TIMES = (
    number("median_ms", "median ms"),
    number("low_ms", "low ms", "95 % interval of the median"),
    number("high_ms", "high ms", "95 % interval of the median"),
    number("q1_ms", "quartile ms"),
    number("q3_ms", "quartile ms"),
    number("num_samples", "samples"),
)
"""Columns of whatever is timed."""
NUMBERS = (
    text("implementation", "implementation"),
    text("table_title", "block table"),
    number("block_size", "block size"),
    number("tokens_per_second", "tokens/s"),
    number("tokens_per_second_low", "low", "95 % interval of the median"),
    number("tokens_per_second_high", "high", "95 % interval of the median"),
    *TIMES,
    share("tax", "tax of paging", "t_paged / t_dense - 1, same kernel family"),
    number("gb_per_second", "GB/s"),
    number("roof_gb_per_second", "roof GB/s", "measured in the same run"),
    share("share_of_roof", "of roof"),
    number("plan_ms", "plan ms"),
    number(
        "breakeven_launches",
        "break-even",
        "launches of one plan from which on it is no dearer than what is cheapest for one",
    ),
    number("sm_mhz", "SM MHz"),
    number("mem_mhz", "memory MHz"),
    number("power_w", "W"),
    number("temperature_c", "°C"),
    text("clocks_told", "throttled"),
    Column("laws", "laws", tag=True),
    text("reason", "because"),
    text("workload_title", "workload"),
)


def numbers_table(charts: Sequence[Chart]) -> Table:
    """Every row with every figure."""
    found = facets(charts)
    rows = [
        {**choice(found, chart, curve), **_number_row(chart, curve, record)}
        for chart in charts
        for curve in chart.curves
        for record in curve.points.values()
    ]
    untold = {name for name in ("clocks_told", "reason") if not any(row[name] for row in rows)}
    columns = [column for column in NUMBERS if column.name not in untold]
    marks = {(index, "workload_title"): "soft" for index in range(len(rows))}
    return Table("benchmarks", columns, rows, FACETS, marks).filled()


def _number_row(chart: Chart, curve: Curve, record: Record) -> dict[str, Any]:
    rate, time = tokens_per_second(record), time_ms(record)
    known = {column.name: record.get(column.name) for column in NUMBERS}
    clocks = record.get("clocks") or {}
    throttled = clocks.get("throttled")
    row = {
        **known,
        **{name: clocks.get(name) for name in ("sm_mhz", "mem_mhz", "power_w", "temperature_c")},
        "clocks_told": None if throttled is None else "throttled" if throttled else "no",
        "workload_title": chart.title,
        "implementation": curve.label,
        "table_title": curve.table,
        "laws": VERIFIED if record["verified"] else NOT_VERIFIED,
    }
    if rate is not None and time is not None and rate.kind == INTERVAL:
        row |= {"low_ms": time.low, "high_ms": time.high}
        row |= {"tokens_per_second_low": rate.low, "tokens_per_second_high": rate.high}
    return row


def plan_table(charts: Sequence[Chart]) -> Table:
    """Planning beside the launches that it serves."""
    found = facets(charts)
    columns = [
        text("implementation", "implementation"),
        text("table_title", "block table"),
        number("block_size", "block size"),
        number("plan_ms", "plan ms"),
        number("median_ms", "launch ms"),
        number("plan_launches", "plan in launches", "how many launches take as long as one plan"),
        number("breakeven_launches", "break-even launches"),
    ]
    rows = [
        {
            **choice(found, chart, curve),
            **{name: record.get(name) for name in ("block_size", "plan_ms", "median_ms", "breakeven_launches")},
            "implementation": curve.label,
            "table_title": curve.table,
            "plan_launches": record["plan_ms"] / record["median_ms"],
        }
        for chart in charts
        for curve in chart.curves
        for record in curve.points.values()
        if record.get("plan_ms") and record["median_ms"]
    ]
    return Table("plan", columns, rows, FACETS).filled()


COMPILED = {"registers": "registers a thread", "num_warps": "warps"}
"""What is not called by its field's name."""


def compiled_table(rows: Untimed, place: int) -> Table:
    """What the compiler says of a kernel that can't be timed here; ``place`` tells the tables of a page apart."""
    names = [name for name in dict.fromkeys(name for entry in rows.resources for name in entry) if name != "target"]
    numbers = [
        (share if name == "occupancy" else number)(name, COMPILED.get(name, name.replace("_", " "))) for name in names
    ]
    return Table(f"compiled-{place}", [text("target", "compiled for"), *numbers], rows.resources).filled()
