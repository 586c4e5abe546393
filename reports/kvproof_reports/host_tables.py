"""The tables of what the host does: allocator calls, serving, replays, and what they make of a block size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvproof_reports.capacity import capacities, traffic_of
from kvproof_reports.kernel_tables import NOT_VERIFIED, TIMES, VERIFIED
from kvproof_reports.plot import Facet
from kvproof_reports.rates import POINT, REPEATS, Estimate, time_ms
from kvproof_reports.schema import HOST_GROUPS
from kvproof_reports.serving_plots import capacity_facets, side_choice, side_facets
from kvproof_reports.tables import Column, Table, number, share, text
from kvproof_reports.two_sides import Sides
from kvproof_reports.verdict import Subject

Record = Mapping[str, Any]

STEP_TENSORS = {True: "step tensors", False: "no step tensors", None: ""}


def calls_table(columns: Sequence[Subject]) -> Table:
    """Single calls of allocators."""
    shown = [
        text("label", "implementation"),
        text("operation", "operation"),
        number("block_size", "block size"),
        number("ns_per_token", "ns per token"),
        *TIMES,
        Column("laws", "laws", tag=True),
    ]
    sizes = _block_sizes(columns)
    rows = [
        {**_benchmark(subject, r), "blocks": sizes.index(r["block_size"])}
        for subject in columns
        for r in subject.benchmarks
        if is_call(r)
    ]
    return Table("allocator", shown, rows, ("blocks",)).filled()


def call_facets(columns: Sequence[Subject]) -> list[Facet]:
    sizes = [str(size) for size in _block_sizes(columns)]
    return [Facet("blocks", "block size", sizes, "16" if "16" in sizes else next(iter(sizes), None), all="all sizes")]


def call_times(columns: Sequence[Subject]) -> list[dict[str, Any]]:
    """For ``calls_plot``: µs of a call."""
    sizes = _block_sizes(columns)
    return [
        {
            "label": subject.label,
            "operation": operation(record),
            "estimate": time and time.scaled(1e3),
            "blocks": sizes.index(record["block_size"]),
        }
        for subject in columns
        for record in subject.benchmarks
        if is_call(record)
        for time in [time_ms(record)]
    ]


def _block_sizes(columns: Sequence[Subject]) -> list[int]:
    return sorted({r["block_size"] for subject in columns for r in subject.benchmarks if is_call(r)})


def is_call(record: Record) -> bool:
    """Host work that is timed call by call; under the serving workload the figures are others."""
    return bool(record["timed"]) and record["group"] in HOST_GROUPS and not is_serving(record)


def operation(record: Record) -> str:
    """What is called; with its group where that is not the allocator itself."""
    group = "" if record["group"] == "allocator" else record["group"].replace("_", " ")
    return ", ".join(filter(None, (group, record["operation"])))


def is_serving(record: Record) -> bool:
    return record["ns_per_append"] is not None


def serving_table(columns: Sequence[Subject]) -> Table:
    """Allocators under the serving workload."""
    shown = [
        text("label", "implementation"),
        text("operation", "workload"),
        number("ns_per_append", "ns per append"),
        number("ns_per_append_stable", "stable batch"),
        number("us_per_admit", "µs per admission"),
        number("us_per_admit_p99", "p99"),
        number("us_per_free", "µs per free"),
        number("us_per_step", "µs per step"),
        number("bytes_per_block", "bytes a block"),
        share("hit_rate", "prefix hits"),
        number("min_free_blocks", "fewest free blocks"),
        text("included", "ns per append includes"),
    ]
    rows = [_benchmark(subject, r) for subject in columns for r in subject.benchmarks if is_serving(r)]
    return Table("serving", shown, rows).filled()


def append_times(columns: Sequence[Subject]) -> list[dict[str, Any]]:
    """For ``appends_plot``: ns of an append, from the fastest to the slowest repeat."""
    return [
        {"label": subject.label, "operation": record["operation"], "estimate": _repeats(record)}
        for subject in columns
        for record in subject.benchmarks
        if is_serving(record)
    ]


def _repeats(record: Record) -> Estimate:
    value = record["ns_per_append"]
    low, high = (record["spread"] or {}).get("ns_per_append") or (value, value)
    return Estimate(value, low, high, REPEATS if low < high else POINT)


def _benchmark(subject: Subject, record: Record) -> dict[str, Any]:
    return {
        **record,
        "label": subject.label,
        "operation": operation(record),
        "laws": VERIFIED if record["verified"] else NOT_VERIFIED,
        "included": STEP_TENSORS[record["step_tensors_included"]],
    }


def replay_table(columns: Sequence[Subject]) -> Table:
    """The same requests through each allocator."""
    shown = [
        text("label", "allocator"),
        number("block_size", "block size"),
        number("num_blocks", "blocks"),
        share("waste", "waste", "slots held without a token, of slots held", bar=True),
        number("mean_running", "mean running"),
        number("peak_running", "peak running"),
        number("num_preemptions", "preemptions"),
        number("num_finished", "finished"),
        number("num_requests", "of requests"),
        number("num_rejected", "rejected"),
        share("hit_rate", "prefix hits"),
        number("allocator_seconds", "allocator s"),
        text("trace", "trace"),
    ]
    traffic = capacity_facets(capacities(columns))[0]
    rows = [
        {**record, "label": subject.label, "traffic": traffic.index(traffic_of(record))}
        for subject in columns
        for record in subject.replays
    ]
    marks = {(index, "trace"): "soft" for index in range(len(rows))}
    return Table("replays", shown, rows, ("traffic",), marks).filled()


def sides_table(sides: Sequence[Sides]) -> Table:
    """The best block size of each kernel and allocator, and those that can't be told from it."""
    found = side_facets(sides)
    shown = [
        text("kernel", "kernel"),
        text("allocator_name", "allocator"),
        number("best", "best block size"),
        number("rate", "tokens/s per device", "by the model above"),
        text("alike", "can't be told from it"),
        number("kernel_us", "µs a token", "attention of one layer"),
        number("running", "sequences"),
        text("traffic_name", "traffic"),
    ]
    rows = [
        {
            **side_choice(found, one),
            "kernel": one.kernel,
            "allocator_name": one.allocator,
            "traffic_name": one.traffic,
            "best": one.best,
            "rate": one.tokens_per_second[one.best],
            "alike": ", ".join(map(str, one.alike)) or "none",
            "kernel_us": one.kernel_us[one.best],
            "running": one.running[one.best],
        }
        for one in sides
    ]
    marks = {(index, "traffic_name"): "soft" for index in range(len(rows))}
    return Table("block-size", shown, rows, [facet.name for facet in found], marks)
