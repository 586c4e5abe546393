"""``report.html``: one file, no network, readable without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvproof_reports.compare import compare_runs
from kvproof_reports.curves import charts, untimed
from kvproof_reports.extras import need
from kvproof_reports.figures import figure, percent, plural
from kvproof_reports.plot import plotly_script, throughput_figure
from kvproof_reports.records import Run
from kvproof_reports.schema import OUTCOMES
from kvproof_reports.verdict import Cell, Subject, judged, matrix, not_verified, notes, subjects
from kvproof_reports.workload import shape_title

TEMPLATES = Path(__file__).with_name("templates")

WORDS = {outcome: outcome.replace("_", " ") for outcome in OUTCOMES}
MARKS = {"verified": "✓", "broken": "✗", "refused": "−", "known_broken": "✗", "not_run": "○", "error": "!"}
"""Beside the colour, so that the matrix can be read without it."""


def write_html(runs: Sequence[Run], path: str | Path) -> Path:
    """Write the report of ``runs`` to ``path`` and return it.

    Raises:
        MissingExtra: jinja2 or plotly is not installed.
    """
    path = Path(path)
    # A test's output may hold lone surrogates, which no UTF-8 file can.
    path.write_text(render_html(runs), encoding="utf-8", errors="backslashreplace")
    return path


def render_html(runs: Sequence[Run]) -> str:
    jinja2 = need("jinja2", "report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure, "percent": percent}
    environment.globals |= {"words": WORDS, "marks": MARKS, "plural": plural, "shape_title": shape_title}
    return str(environment.get_template("report.html.j2").render(_context(runs)))


def _context(runs: Sequence[Run]) -> dict[str, Any]:
    columns = subjects(runs)
    labels = [subject.label for subject in columns]
    figures = [(chart, throughput_figure(chart, labels)) for chart in charts(columns)]
    return {
        "runs": _sessions(columns),
        "subjects": judged(columns),
        "gaps": [(subject, gap) for subject in columns for gap in not_verified(subject)],
        "notes": notes(runs),
        "laws": matrix(columns),
        "exceptions": exceptions,
        "figures": figures,
        "plotly": plotly_script() if figures else "",
        "untimed": untimed(columns),
        "allocator": [(subject, record) for subject in columns for record in subject.benchmarks if _allocates(record)],
        "serving": [(subject, record) for subject in columns for record in subject.benchmarks if _serves(record)],
        "replays": [(subject, record) for subject in columns for record in subject.replays],
        "comparison": compare_runs(runs) if len(runs) > 1 else None,
    }


def _allocates(record: Mapping[str, Any]) -> bool:
    return bool(record["timed"]) and record["group"] == "allocator" and not _serves(record)


def _serves(record: Mapping[str, Any]) -> bool:
    """An allocator under the serving workload, whose figures are others than those of single calls."""
    return record["ns_per_append"] is not None


def _sessions(columns: Sequence[Subject]) -> dict[str, Mapping[str, Any]]:
    """Run label to its last session record, flat: environment beside the rest."""
    flat: dict[str, Mapping[str, Any]] = {}
    for label, run in {subject.run_label: subject.run for subject in columns}.items():
        for session in run.latest("session"):
            flat[label] = {**session, **session["environment"]}
    return flat


def exceptions(cell: Cell) -> list[tuple[Mapping[str, Any], int]]:
    """What a cell must tell: each broken or failed test, and the others once a reason, with the number of tests."""
    told: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in cell.records:
        if record["outcome"] != "verified":
            alone = record["outcome"] in ("broken", "error")
            told.setdefault((record["outcome"], record["reason"], record["test"] if alone else ""), []).append(record)
    return [(records[0], len(records)) for records in told.values()]
