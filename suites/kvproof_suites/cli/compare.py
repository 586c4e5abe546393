"""``kvproof compare``: the benchmarks of several runs, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvproof_suites.cli import run_folders
from kvproof_suites.cli.terminal import show_json, show_table

if TYPE_CHECKING:
    from kvproof_reports.compare import Comparison, Row


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--implementations", is_flag=True, help="A column is an implementation; without it, a run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(runs: tuple[Path, ...], implementations: bool, as_json: bool) -> None:
    """Put the benchmarks of RUNs side by side: median milliseconds, and times the first column's median.

    RUN is a folder that holds a results.jsonl. Below 1 is faster than the first column.

    \b
    kvproof compare results/before results/after
    kvproof compare --implementations results/monday
    """
    from kvproof_reports.compare import compare_implementations, compare_runs

    compared = (compare_implementations if implementations else compare_runs)(run_folders.read(runs))
    if not compared.rows:
        raise click.ClickException(f"no timed benchmark in {', '.join(map(str, runs))}; `kvproof run` makes some")
    if as_json:
        show_json({"columns": list(compared.columns), "rows": [_as_object(row) for row in compared.rows]})
        return
    told = _common_fields(compared)
    headings = [f"{column} {unit}" for column in compared.columns for unit in ("ms", "×")][:1]
    headings += [f"{column} {unit}" for column in compared.columns[1:] for unit in ("ms", "×")]
    varying = [name for name in compared.rows[0].workload if name not in told]
    title = ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)
    show_table([*varying, *headings], (_cells(row, varying, compared.columns) for row in compared.rows), title=title)


def _as_object(row: Row) -> dict[str, Any]:
    return {**row.workload, "median_ms": row.median_ms, "ratio": row.ratio}


def _common_fields(compared: Comparison) -> dict[str, Any]:
    """What all rows share belongs in the title."""
    first = compared.rows[0].workload
    return {name: value for name, value in first.items() if all(row.workload[name] == value for row in compared.rows)}


def _cells(row: Row, varying: list[str], columns: Any) -> list[str]:
    from kvproof_reports.figures import figure

    cells = ["" if row.workload[name] is None else str(row.workload[name]) for name in varying]
    cells.append(figure(row.median_ms.get(columns[0])))
    for column in columns[1:]:
        cells += [figure(row.median_ms.get(column)), figure(row.ratio.get(column))]
    return cells
