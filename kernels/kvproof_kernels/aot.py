"""Compile every form that the launcher can choose, for every chip, and keep what each one takes.

    python -m kvproof_kernels.aot [--target sm_90] [--table kernels/aot.csv] [--report kernels/AOT.md]

Needs no GPU. With ``--table`` the rows of this version of Triton are replaced, those of others stay. Exits with 1 when
a form spills, takes more shared memory than the chip has, loads K or V in pieces below 16 bytes, leaves tensor cores
idle that it should use, or is worse than in the table as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import triton
from rich.console import Console
from rich.progress import track

from kvproof_kernels.aot_report import report
from kvproof_kernels.aot_table import Row, read_table, regression, write_table
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.forms import forms
from kvproof_kernels.resources import Form, compile_form, complaint


def complaints(form: Form, row: Row, table: list[Row]) -> Iterator[str]:
    """What is wrong with a form as compiled, and what is worse than the table says."""
    wrong = complaint(row.resources, form)
    if wrong:
        yield f"{form.kernel} ({form.case}) on {row.resources.target} with Triton {row.triton} {wrong}"
    worse = regression(row, table)
    if worse:
        yield worse


@click.command(help=__doc__)
@click.option("--target", "targets", multiple=True, type=click.Choice(list(CHIPS)), help="Only this chip; repeatable.")
@click.option("--table", "table_file", type=click.Path(dir_okay=False, path_type=Path), help="The table to keep.")
@click.option("--report", "report_file", type=click.Path(dir_okay=False, path_type=Path), help="Written for people.")
def main(targets: tuple[str, ...], table_file: Path | None, report_file: Path | None) -> None:
    console = Console(stderr=True)
    wanted = [(form, target) for target in targets or CHIPS for form in forms(target)]
    table = read_table(table_file) if table_file else []
    rows: list[Row] = []
    wrong: list[str] = []
    for form, target in track(wanted, f"Triton {triton.__version__}", console=console):
        rows.append(Row(triton.__version__, compile_form(form, target)))
        wrong += complaints(form, rows[-1], table)
    kept = [row for row in table if row.triton != triton.__version__ or row.resources.target not in (targets or CHIPS)]
    if table_file:
        write_table(table_file, [*kept, *rows])
    if report_file:
        report_file.write_text(report([*kept, *rows]), encoding="utf-8")
    print(*wrong, f"{len(rows)} forms, {len(wrong)} complaints", sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
