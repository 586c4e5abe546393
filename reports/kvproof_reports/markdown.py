"""``report.md``: the report in short, for a pull-request comment or a step summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kvproof_reports.curves import charts, untimed
from kvproof_reports.figures import figure, percent, plural
from kvproof_reports.records import Run
from kvproof_reports.schema import OUTCOMES
from kvproof_reports.verdict import Subject, judged, not_verified, notes, subjects

NUM_COUNTEREXAMPLES = 10
"""Told in full; a pull-request comment holds 65,536 characters."""

NUM_REASON_CHARACTERS = 1500


def write_markdown(runs: Sequence[Run], path: str | Path) -> Path:
    """Write the report of ``runs`` to ``path`` and return it."""
    path = Path(path)
    path.write_text(render_markdown(runs), encoding="utf-8", errors="backslashreplace")
    return path


def render_markdown(runs: Sequence[Run]) -> str:
    columns = subjects(runs)
    parts = [
        "## kvproof",
        _verdicts(judged(columns)),
        *_counterexamples(columns),
        *_gaps(columns, runs),
        *_throughput(columns),
        *_allocator(columns),
        *_serving(columns),
        *_replays(columns),
        *_environment(columns),
    ]
    return "\n\n".join(parts) + "\n"


def escape(value: object) -> str:
    """Any text as one line of plain Markdown text, fit for a table cell: no markup, no HTML, no mention."""
    line = " ".join(str(value).split())
    line = re.sub(r"([\\`*_\[\]#|~])", r"\\\1", line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fenced(text: str) -> str:
    """A code block that its own content can't close."""
    if len(text) > NUM_REASON_CHARACTERS:
        text = f"{text[:NUM_REASON_CHARACTERS]}\n... ({len(text):,} characters in all, see report.html)"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], num_text_columns: int = 1) -> str:
    """Cells are escaped; all columns but the first ``num_text_columns`` are aligned to the right."""
    rule = ["---" if index < num_text_columns else "---:" for index in range(len(header))]
    lines = [[escape(cell) for cell in header], rule, *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _verdicts(columns: Sequence[Subject]) -> str:
    used = [outcome for outcome in OUTCOMES if any(subject.counts[outcome] for subject in columns)]
    header = ["implementation", "verdict", *(outcome.replace("_", " ") for outcome in used), "breaks"]
    rows = [
        [subject.label, subject.verdict, *(figure(subject.counts[o]) for o in used), ", ".join(subject.broken_laws)]
        for subject in columns
    ]
    return table(header, rows, num_text_columns=2)


def _counterexamples(columns: Sequence[Subject]) -> list[str]:
    broken = [(subject, r) for subject in columns for r in subject.laws if r["outcome"] in ("broken", "error")]
    if not broken:
        return []
    parts = ["### Broken"]
    for subject, record in broken[:NUM_COUNTEREXAMPLES]:
        words = "" if record["outcome"] == "broken" else " (the test itself failed)"
        parts.append(f"**{escape(subject.label)}** {escape(record['law'])}: {escape(record['sentence'])}{words}")
        parts.append(fenced("\n".join(filter(None, (record["test"], record["reason"], record["case"])))))
    if len(broken) > NUM_COUNTEREXAMPLES:
        parts.append(f"... and {plural(len(broken) - NUM_COUNTEREXAMPLES, 'more test')}, in report.html")
    return parts


def _gaps(columns: Sequence[Subject], runs: Sequence[Run]) -> list[str]:
    lines = [
        f"- {outcome.replace('_', ' ')}: **{escape(subject.label)}**, {plural(number, 'test')}: {escape(reason)}"
        for subject in columns
        for outcome, reason, number in not_verified(subject, ("known_broken", "refused", "not_run"))
    ]
    lines += [f"- {escape(note)}" for note in notes(runs)]
    return ["### Not verified, and why", "\n".join(lines)] if lines else []


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
    for chart in charts(columns):
        rows = [
            [curve.label, curve.table, *(_rate(curve.points.get(size)) for size in chart.block_sizes)]
            for curve in chart.curves
        ]
        header = ["implementation", "table", *map(str, chart.block_sizes)]
        parts += [escape(chart.title), table(header, rows, num_text_columns=2)]
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
