"""``kvproof compare``: the benchmarks of several runs, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvproof_suites.cli import run_folders
from kvproof_suites.cli.terminal import show_json, show_table

if TYPE_CHECKING:
    from kvproof_reports.compare import Comparison, Row


@click.command(short_help="Runs side by side: faster, same or slower.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--implementations", is_flag=True, help="A column is an implementation; without it, a run.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.03,
    show_default=True,
    help="A smaller difference, as a share, is none.",
)
@click.option("--mlflow", "uri", help="Tracking URI; else MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(runs: tuple[str, ...], implementations: bool, threshold: float, uri: str | None, as_json: bool) -> None:
    """Put the benchmarks of RUNs side by side, and say what each is, seen from the first: faster, same, slower, or
    can't tell.

    RUN is a folder that holds a results.jsonl, such a file, or the id of an MLflow run. The columns are median
    milliseconds, times the first column (below 1 is faster), the 95 % interval of that, and the answer, which comes
    from the interval and the threshold, never from two medians. What one thread waited for a core is in the
    milliseconds, and in nothing else where both columns know it.

    \b
    kvproof compare results/before results/after
    kvproof compare --implementations results/monday
    kvproof compare 0123456789abcdef0123456789abcdef results/today --mlflow=http://localhost:5000
    """
    from kvproof_reports.compare import compare_implementations, compare_runs

    found = run_folders.read_anywhere(runs, uri)
    compared = (compare_implementations if implementations else compare_runs)(found)
    if not compared.rows:
        raise click.ClickException(f"no timed benchmark in {', '.join(runs)}; `kvproof run` makes some")
    if as_json:
        rows = [_as_object(row, threshold) for row in compared.rows]
        show_json({"columns": list(compared.columns), "threshold": threshold, "confidence": 0.95, "rows": rows})
        return
    told = _common_fields(compared)
    headings = [f"{compared.columns[0]} ms"]
    headings += [f"{column} {what}" for column in compared.columns[1:] for what in ("ms", "×", "95 %", "is")]
    varying = [name for name in compared.rows[0].workload if name not in told]
    title = ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)
    cells = (_cells(row, varying, compared.columns, threshold) for row in compared.rows)
    show_table([*varying, *headings], cells, title=title)


def _as_object(row: Row, threshold: float) -> dict[str, Any]:
    answers = {column: told.as_object() for column, told in row.answers(threshold).items()}
    return {**row.workload, "median_ms": row.median_ms, "ratio": row.ratio, "answers": answers}


def _common_fields(compared: Comparison) -> dict[str, Any]:
    """What all rows share belongs in the title."""
    first = compared.rows[0].workload
    return {name: value for name, value in first.items() if all(row.workload[name] == value for row in compared.rows)}


def _cells(row: Row, varying: list[str], columns: Any, threshold: float) -> list[str]:
    from kvproof_reports.figures import NOTHING, figure

    answers = row.answers(threshold)
    cells = ["" if row.workload[name] is None else str(row.workload[name]) for name in varying]
    cells.append(figure(row.median_ms.get(columns[0])))
    for column in columns[1:]:
        told = answers.get(column)
        cells.append(figure(row.median_ms.get(column)))
        cells += [figure(told.ratio), told.interval or NOTHING, told.answer] if told else [NOTHING] * 3
    return cells
