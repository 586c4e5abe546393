"""``report.html``: one file, no network; text and tables are readable without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvproof_reports.archive import pack_json, plotly
from kvproof_reports.capacity import capacities
from kvproof_reports.compare import compare_runs
from kvproof_reports.curves import charts, drawn, untimed
from kvproof_reports.extras import need
from kvproof_reports.figures import figure, percent, plural
from kvproof_reports.gaps import gaps
from kvproof_reports.kernel_tables import compiled_table
from kvproof_reports.links import linked
from kvproof_reports.plot import Facet
from kvproof_reports.records import Run
from kvproof_reports.schema import OUTCOMES
from kvproof_reports.sections import Section, kernel_sections, other_sections, serving_sections
from kvproof_reports.tables import Table
from kvproof_reports.two_sides import best_sizes, two_sides
from kvproof_reports.verdict import NOT_AVAILABLE, Cell, LawRow, Subject, judged, matrix, notes, subjects
from kvproof_reports.whole import write_whole
from kvproof_reports.winners import winners

TEMPLATES = Path(__file__).with_name("templates")

WORDS = {outcome: outcome.replace("_", " ") for outcome in (*OUTCOMES, "not_timed")}
MARKS = {"verified": "✓", "broken": "✗", "refused": "−", "known_broken": "✗", "not_run": "○", "error": "!"}
"""Beside the colour, so that the matrix can be read without it."""


def write_html(runs: Sequence[Run], path: str | Path, laws: Mapping[str, Mapping[str, str]] | None = None) -> Path:
    """Write the report of ``runs`` to ``path`` and return it. ``laws``: as ``render_html`` has it.

    Raises:
        MissingExtra: jinja2 or plotly is not installed.
    """
    path = Path(path)
    write_whole(path, render_html(runs, laws))
    return path


def render_html(runs: Sequence[Run], laws: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The page as text.

    Args:
        laws: what a reader may want to know of a law, by its id: "title", "why" (what it prevents) and "origin" (where
            that was seen). What is missing is left out.
    """
    jinja2 = need("jinja2", "report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure, "percent": percent, "linked": linked}
    environment.globals |= {"words": WORDS, "marks": MARKS, "plural": plural, "most_broken": MOST_BROKEN}
    return str(environment.get_template("report.html.j2").render(_context(runs, laws or {})))


def _context(runs: Sequence[Run], laws: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    columns = subjects(runs)
    timed = charts(columns)
    found = drawn(timed)
    labels = [subject.label for subject in columns]
    sessions = _sessions(columns)
    kernels = [*kernel_sections(found, labels), *serving_sections(found, columns)]
    others = other_sections(columns, compare_runs(runs) if len(runs) > 1 else None, sessions)
    not_timed = untimed(columns)
    compiled = [compiled_table(rows, place) for place, rows in enumerate(not_timed)]
    return {
        "sessions": sessions,
        "subjects": [subject for subject in judged(columns) if subject.verdict != NOT_AVAILABLE],
        "absent": [subject.label for subject in judged(columns) if subject.verdict == NOT_AVAILABLE],
        "winners": winners(columns),
        "best_sizes": best_sizes(two_sides(timed, capacities(columns))),
        "gaps": gaps(columns),
        "notes": notes(runs),
        "laws": matrix(columns),
        "under_law": [subject for subject in columns if subject.laws],
        "about_laws": laws,
        "outcomes": Facet("outcome", "show", OUTCOMES, all="all laws"),
        "outcomes_of": outcomes_of,
        "exceptions": exceptions,
        "left_out": len(timed) - len(found),
        "kernels": kernels,
        "untimed": list(zip(not_timed, compiled, strict=True)),
        "others": others,
        "plotly": plotly() if any(section.plot for section in (*kernels, *others)) else "",
        "data": pack_json(_data((*kernels, *others), compiled)),
    }


def _data(sections: Sequence[Section], more: Sequence[Table]) -> dict[str, Any]:
    """What the page sorts, saves and draws."""
    tables = [table for section in sections for table in (section.table, section.details) if table is not None]
    return {
        "tables": {table.name: table.data for table in (*tables, *more)},
        "plots": {section.name: section.plot.data for section in sections if section.plot is not None},
    }


def _sessions(columns: Sequence[Subject]) -> dict[str, Mapping[str, Any]]:
    """Run label to its last session record."""
    runs = {subject.run_label: subject.run for subject in columns}
    return {label: session for label, run in runs.items() for session in run.latest("session")[-1:]}


def outcomes_of(row: LawRow) -> list[int]:
    """Which outcomes a law has with any implementation, as indexes of OUTCOMES."""
    return sorted({OUTCOMES.index(record["outcome"]) for cell in row.cells.values() for record in cell.records})


MOST_BROKEN = 6
"""Tests of one cell whose counterexamples are told; the others are in the results file."""


def exceptions(cell: Cell) -> list[tuple[Mapping[str, Any], int]]:
    """What a cell must tell: each broken or failed test, and the others once a reason, with the number of tests."""
    told: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in cell.records:
        if record["outcome"] != "verified":
            alone = record["outcome"] in ("broken", "error")
            told.setdefault((record["outcome"], record["reason"], record["test"] if alone else ""), []).append(record)
    return [(records[0], len(records)) for records in told.values()]
