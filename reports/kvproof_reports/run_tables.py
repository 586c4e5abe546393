"""The tables of runs: one against another, and the machines that they ran on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof_reports.compare import Comparison
from kvproof_reports.tables import Column, Table, number, text
from kvproof_reports.workload import condition_title, shape_title

Record = Mapping[str, Any]


LESS_WAITS = "less what one thread waited for a core, where both know that; the milliseconds hold it"


def comparison_table(comparison: Comparison) -> Table:
    """A column of medians for each run, and one of ratios for each but the first, which is the baseline."""
    shown = [text("implementation", "implementation"), text("workload", "workload")]
    shown += [text("table", "block table"), number("block_size", "block size")]
    for index, run in enumerate(comparison.columns):
        shown.append(number(f"ms_{index}", f"{run}, ms"))
        if index:
            shown.append(number(f"ratio_{index}", "ratio", f"{run} over {comparison.columns[0]}, {LESS_WAITS}"))
            shown.append(text(f"interval_{index}", "95 % interval"))
            shown.append(Column(f"answer_{index}", "answer", tag=True))
    answers = [row.answers() for row in comparison.rows]
    rows = [
        {
            "implementation": row.workload["implementation"],
            "workload": _title(row.workload),
            "table": row.workload["table"],
            "block_size": row.workload["block_size"],
            **{f"ms_{index}": row.median_ms.get(run) for index, run in enumerate(comparison.columns)},
            **{f"ratio_{i}": told[run].ratio for i, run in enumerate(comparison.columns) if run in told},
            **{f"interval_{i}": told[run].interval for i, run in enumerate(comparison.columns) if run in told},
            **{f"answer_{i}": told[run].answer for i, run in enumerate(comparison.columns) if run in told},
        }
        for row, told in zip(comparison.rows, answers, strict=True)
    ]
    return Table("runs", shown, rows)


def _title(workload: Record) -> str:
    return ", ".join(filter(None, (workload["operation"] or shape_title(workload), condition_title(workload))))


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
