"""The tables of allocators, replays, runs against each other, and the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvproof_reports.compare import Comparison
from kvproof_reports.kernel_tables import NOT_VERIFIED, VERIFIED
from kvproof_reports.schema import HOST_GROUPS
from kvproof_reports.tables import Column, Table, number, share, text
from kvproof_reports.verdict import Subject
from kvproof_reports.workload import shape_title

Record = Mapping[str, Any]

STEP_TENSORS = {True: "step tensors", False: "no step tensors", None: ""}


def calls_table(columns: Sequence[Subject]) -> Table:
    """Single calls of allocators."""
    shown = [
        text("label", "implementation"),
        text("operation", "operation"),
        number("block_size", "block size"),
        number("ns_per_token", "ns per token"),
        number("median_ms", "median ms"),
        number("low_ms", "low ms", "95 % interval of the median"),
        number("high_ms", "high ms", "95 % interval of the median"),
        number("q1_ms", "quartile ms"),
        number("q3_ms", "quartile ms"),
        number("num_samples", "samples"),
        Column("laws", "laws", tag=True),
    ]
    rows = [_benchmark(subject, r) for subject in columns for r in subject.benchmarks if is_call(r)]
    return Table("allocator", shown, rows).filled()


def is_call(record: Record) -> bool:
    """Host work that is timed call by call; under the serving workload the figures are others."""
    return bool(record["timed"]) and record["group"] in HOST_GROUPS and not is_serving(record)


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


def _benchmark(subject: Subject, record: Record) -> dict[str, Any]:
    return {
        **record,
        "label": subject.label,
        "laws": VERIFIED if record["verified"] else NOT_VERIFIED,
        "included": STEP_TENSORS[record["step_tensors_included"]],
    }


def replay_table(columns: Sequence[Subject]) -> Table:
    """The same requests through each allocator."""
    shown = [
        text("label", "allocator"),
        text("trace", "trace"),
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
    ]
    rows = [{**record, "label": subject.label} for subject in columns for record in subject.replays]
    return Table("replays", shown, rows).filled()


def comparison_table(comparison: Comparison) -> Table:
    """A column of medians for each run, and one of ratios for each but the first, which is the baseline."""
    shown = [text("implementation", "implementation"), text("workload", "workload")]
    shown += [text("table", "block table"), number("block_size", "block size")]
    for index, run in enumerate(comparison.columns):
        shown.append(number(f"ms_{index}", f"{run}, ms"))
        if index:
            shown.append(number(f"ratio_{index}", "ratio", f"of medians, {run} over {comparison.columns[0]}"))
            shown.append(text(f"interval_{index}", "95 % interval"))
            shown.append(Column(f"answer_{index}", "answer", tag=True))
    answers = [row.answers() for row in comparison.rows]
    rows = [
        {
            "implementation": row.workload["implementation"],
            "workload": row.workload["operation"] or shape_title(row.workload),
            "table": row.workload["table"],
            "block_size": row.workload["block_size"],
            **{f"ms_{index}": row.median_ms.get(run) for index, run in enumerate(comparison.columns)},
            **{f"ratio_{index}": row.ratio.get(run) for index, run in enumerate(comparison.columns)},
            **{f"interval_{i}": told[run].interval for i, run in enumerate(comparison.columns) if run in told},
            **{f"answer_{i}": told[run].answer for i, run in enumerate(comparison.columns) if run in told},
        }
        for row, told in zip(comparison.rows, answers, strict=True)
    ]
    return Table("runs", shown, rows)


NAMES = {"cpu": "CPU", "num_cpus": "logical cores", "gpu": "GPU", "python": "Python"}
"""What is not called by its field's name."""


def environment_table(sessions: Mapping[str, Record]) -> Table:
    """A column for each run; what differs between them comes first and is marked."""
    environments = [session["environment"] for session in sessions.values()]
    names = list(dict.fromkeys(name for known in environments for name in known))
    values = {name: [known.get(name) for known in environments] for name in names}
    values = {name: found for name, found in values.items() if any(value is not None for value in found)}
    values["command"] = [" ".join(session["command"]) for session in sessions.values()]
    differing = [name for name, found in values.items() if len({str(value) for value in found}) > 1]
    ordered = differing + [name for name in values if name not in differing]
    shown = [text("name", ""), *(text(f"run_{index}", label) for index, label in enumerate(sessions))]
    rows = [
        {
            "name": NAMES.get(name, name.replace("_", " ")),
            **{f"run_{index}": value for index, value in enumerate(values[name])},
        }
        for name in ordered
    ]
    marks = {(row, f"run_{index}"): "differs" for row in range(len(differing)) for index in range(len(sessions))}
    return Table("environment", shown, rows, marks=marks)
