"""``report.md``: the report in short, for a pull-request comment or a step summary."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from kvproof_reports.capacity import capacities
from kvproof_reports.curves import charts, untimed
from kvproof_reports.figures import figure, percent, plural
from kvproof_reports.gaps import Gap, gaps
from kvproof_reports.markup import escape, fenced, table
from kvproof_reports.records import Run
from kvproof_reports.schema import OUTCOMES
from kvproof_reports.two_sides import MODEL, Sides, best_sizes, two_sides
from kvproof_reports.verdict import Subject, judged, notes, subjects
from kvproof_reports.whole import write_whole
from kvproof_reports.winners import winners

NUM_BYTES = 65_000
"""A pull-request comment holds 65,536 characters."""

NUM_COUNTEREXAMPLES = 10
"""Told in full."""

NUM_WINNERS, NUM_REASONS, NUM_CHARTS = 16, 20, 6
"""Told; the others are counted."""


def write_markdown(runs: Sequence[Run], path: str | Path) -> Path:
    """Write the report of ``runs`` to ``path`` and return it."""
    path = Path(path)
    write_whole(path, render_markdown(runs))
    return path


def render_markdown(runs: Sequence[Run]) -> str:
    """What matters most comes first; what a comment can't hold is left out, and the text says so."""
    columns = subjects(runs)
    parts = [
        "## kvproof",
        _verdicts(judged(columns)),
        *_counterexamples(columns),
        *_fastest(columns),
        *_best_block_size(columns),
        *_gaps(columns, runs),
        *_throughput(columns),
        *_allocator(columns),
        *_serving(columns),
        *_replays(columns),
        *_environment(columns),
    ]
    ends = accumulate(len((part + "\n\n").encode("utf-8", "backslashreplace")) for part in parts)
    fitting = [part for part, end in zip(parts, ends, strict=True) if end < NUM_BYTES]
    cut = [] if len(fitting) == len(parts) else ["... cut here; all of it is in report.html"]
    return "\n\n".join(fitting + cut) + "\n"


def _verdicts(columns: Sequence[Subject]) -> str:
    used = [outcome for outcome in OUTCOMES if any(subject.counts[outcome] for subject in columns)]
    header = ["implementation", "verdict", *(outcome.replace("_", " ") for outcome in used), "breaks"]
    rows = [
        [subject.label, subject.verdict, *(figure(subject.counts[o]) for o in used), ", ".join(subject.broken_laws)]
        for subject in columns
    ]
    return table(header, rows, num_text_columns=2)


def _fastest(columns: Sequence[Subject]) -> list[str]:
    found = winners(columns)
    rows = [
        [
            ", ".join(filter(None, (winner.workload, winner.table))),
            winner.label,
            winner.words,
            figure(winner.block_size),
            f"{winner.figure} {winner.unit}",
        ]
        for winner in found[:NUM_WINNERS]
    ]
    header = ["workload", "fastest", "beside the next", "block size", "median and interval"]
    told = ["### Fastest of those that break no law", table(header, rows, num_text_columns=3)] if rows else []
    return told + _more(len(found) - NUM_WINNERS, "workload")


def _more(number: int, what: str) -> list[str]:
    return [f"... and {plural(number, f'more {what}')}, in report.html"] if number > 0 else []


def _best_block_size(columns: Sequence[Subject]) -> list[str]:
    found = best_sizes(two_sides(charts(columns), capacities(columns)))
    rows = [
        [s.traffic, f"{s.kernel}, {s.allocator}", ", ".join(map(str, s.alike)) or "none", s.best, _best_rate(s)]
        for s in found
    ]
    header = ["traffic", "kernel, allocator", "can't be told from it", "best block size", "tokens/s per device"]
    return ["### Best block size", table(header, rows, num_text_columns=3), MODEL] if rows else []


def _best_rate(sides: Sides) -> str:
    return str(sides.tokens_per_second[sides.best])


def _counterexamples(columns: Sequence[Subject]) -> list[str]:
    broken = [(subject, r) for subject in columns for r in subject.laws if r["outcome"] in ("broken", "error")]
    if not broken:
        return []
    parts = ["### Broken"]
    for subject, record in broken[:NUM_COUNTEREXAMPLES]:
        words = "" if record["outcome"] == "broken" else " (the test itself failed)"
        parts.append(f"**{escape(subject.label)}** {escape(record['law'])}: {escape(record['sentence'])}{words}")
        parts.append(fenced("\n".join(filter(None, (record["test"], record["reason"], record["case"])))))
    return parts + _more(len(broken) - NUM_COUNTEREXAMPLES, "test")


def _gaps(columns: Sequence[Subject], runs: Sequence[Run]) -> list[str]:
    found = gaps(columns, ("not_run", "refused", "known_broken"))
    lines = [f"- {escape(note)}" for note in notes(runs)]
    lines += [
        f"- {gap.kind.replace('_', ' ')}: **{escape(', '.join(gap.labels))}**{_tests(gap)}: {escape(gap.reason)}"
        for gap in found[:NUM_REASONS]
    ]
    told = ["### Not verified, and why", "\n".join(lines)] if lines else []
    return told + _more(len(found) - NUM_REASONS, "reason")


def _tests(gap: Gap) -> str:
    return f", {plural(gap.num_tests, 'test')}" if gap.num_tests else ""


SERVING = {
    "ns_per_append": "ns per append",
    "ns_per_append_stable": "stable batch",
    "us_per_admit": "µs per admission",
    "us_per_admit_p99": "p99",
    "us_per_free": "µs per free",
    "us_per_step": "µs per step",
    "bytes_per_block": "bytes a block",
}
"""Figures of an allocator in the serving workload, and what a column is called."""


def _throughput(columns: Sequence[Subject]) -> list[str]:
    parts = ["### Throughput against block size, tokens/s"] if charts(columns) or untimed(columns) else []
    found = charts(columns)
    for chart in found[:NUM_CHARTS]:
        rows = [
            [curve.label, curve.table, *(_rate(curve.points.get(size)) for size in chart.block_sizes)]
            for curve in chart.curves
        ]
        header = ["implementation", "table", *map(str, chart.block_sizes)]
        parts += [escape(chart.title), table(header, rows, num_text_columns=2)]
    parts += _more(len(found) - NUM_CHARTS, "workload")
    if any(not r["verified"] for subject in columns for r in subject.benchmarks if r["timed"]):
        parts.append("† the laws of this row were not verified")
    parts += [
        f"Not timed: **{escape(rows.label)}**, {escape(rows.title)}: {escape(rows.reason)}{_compiled(rows.resources)}"
        for rows in untimed(columns)
    ]
    return parts


def _rate(record: Any) -> str:
    if record is None:
        return ""
    return figure(record["tokens_per_second"]) + ("" if record["verified"] else " †")


def _compiled(resources: Sequence[Any]) -> str:
    told = [
        f"{escape(r['target'])} {figure(r['registers'])} registers, {figure(r['spill_bytes'])} B spilled, "
        f"{figure(r['shared_bytes'])} B shared"
        for r in resources
    ]
    return f" ({'; '.join(told)})" if told else ""


def _allocator(columns: Sequence[Subject]) -> list[str]:
    rows = [
        [subject.label, r["operation"], r["block_size"], figure(r["ns_per_token"]), _rate_stamp(r)]
        for subject in columns
        for r in subject.benchmarks
        if r["timed"] and r["group"] == "allocator" and r["ns_per_append"] is None
    ]
    header = ["implementation", "operation", "block size", "ns per token", "median ms"]
    return ["### Allocator", table(header, rows, num_text_columns=2)] if rows else []


def _serving(columns: Sequence[Subject]) -> list[str]:
    rows = [
        [subject.label, r["operation"], *(figure(r[name]) for name in SERVING), percent(r["hit_rate"]), _included(r)]
        for subject in columns
        for r in subject.benchmarks
        if r["ns_per_append"] is not None
    ]
    header = ["implementation", "workload", *SERVING.values(), "prefix hits", "ns per append includes"]
    return ["### Allocators in a serving engine", table(header, rows, num_text_columns=2)] if rows else []


def _included(record: Any) -> str:
    return "step tensors" if record["step_tensors_included"] else "no step tensors"


def _rate_stamp(record: Any) -> str:
    return figure(record["median_ms"]) + ("" if record["verified"] else " †")


def _replays(columns: Sequence[Subject]) -> list[str]:
    rows = [
        [
            subject.label,
            r["trace"],
            f"{r['num_blocks']:,} blocks of {r['block_size']}",
            percent(r["waste"]),
            figure(r["mean_running"]),
            figure(r["peak_running"]),
            figure(r["num_preemptions"]),
            f"{r['num_finished']:,} of {r['num_requests']:,}",
        ]
        for subject in columns
        for r in subject.replays
    ]
    header = ["allocator", "trace", "pool", "waste", "mean running", "peak running", "preemptions", "finished"]
    return ["### Trace replay", table(header, rows, num_text_columns=3)] if rows else []


def _environment(columns: Sequence[Subject]) -> list[str]:
    lines = []
    for label, run in {subject.run_label: subject.run for subject in columns}.items():
        for session in run.latest("session")[-1:]:
            known = {k: v for k, v in session["environment"].items() if v is not None and k != "num_cpus"}
            told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in known.items())
            lines.append(escape(f"{label}: {session['device']}, {session['tier']}, seed {session['seed']}; {told}"))
    return ["\n\n".join(lines)] if lines else []
