"""Compile every variant that a launch can choose, for every chip, and keep what each one takes.

    python -m kvproof_kernels.aot [--target sm_90] [--only REGEX] [--table aot.csv] [--peers FILE] [--report AOT.md]

Needs no GPU. With ``--table`` the rows of this version of Triton that were compiled anew are replaced, and those that
are no longer compiled leave it. Exits with 1 when a variant does not compile, spills, takes more shared memory than the
chip has, loads K or V in pieces below 16 bytes, leaves tensor cores idle that it should use, or is worse than in the
table as it was.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import triton
from rich.console import Console
from rich.progress import track

from kvproof_kernels.aot_report import report
from kvproof_kernels.aot_table import Key, Row, read_table, regression, write_table
from kvproof_kernels.candidates import tuned_variants
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.resources import Variant, compile_variant, complaint
from kvproof_kernels.variants import variants

Place = tuple[str, int]
"""(chip, number of the variant among those of the chip): what is handed to another process."""
PATH = click.Path(dir_okay=False, path_type=Path)


def key_of(variant: Variant, target: str) -> Key:
    return triton.__version__, variant.kernel, variant.case, target


def complaints(variant: Variant, row: Row, table: list[Row]) -> Iterator[str]:
    """What is wrong with a variant as compiled, and what is worse than the table says."""
    wrong = complaint(row.resources, variant)
    if wrong:
        yield f"{variant.kernel} ({variant.case}) on {row.resources.target} with Triton {row.triton} {wrong}"
    worse = regression(row, table)
    if worse:
        yield worse


@functools.cache
def variants_of(target: str) -> list[Variant]:
    return [*variants(target), *tuned_variants(target)]


def compiled(place: Place) -> Row | str:
    """The row of a variant, or why there is none."""
    target, number = place
    variant = variants_of(target)[number]
    try:
        return Row(triton.__version__, compile_variant(variant, target))
    except Exception as error:  # whatever the compiler meets: the other variants are still of interest
        return f"{variant.kernel} ({variant.case}) on {target}: {type(error).__name__}: {str(error)[:500]}"


def compile_all(places: list[Place], table: list[Row], jobs: int) -> tuple[list[Row], list[str]]:
    """Rows, and what is wrong."""
    rows: list[Row] = []
    wrong: list[str] = []
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(compiled, places)
        shown = track(results, f"Triton {triton.__version__}", len(places), console=Console(stderr=True))
        for (target, number), result in zip(places, shown, strict=True):
            if isinstance(result, str):
                wrong.append(result)
                continue
            rows.append(result)
            wrong += complaints(variants_of(target)[number], result, table)
    return rows, wrong


@click.command(help=__doc__)
@click.option("--target", "targets", multiple=True, type=click.Choice(list(CHIPS)), help="Only this chip; repeatable.")
@click.option("--only", default="", help="Only variants whose 'kernel, case' this is found in.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--table", "table_file", type=PATH, help="The table to keep.")
@click.option("--peers", "peers_file", type=PATH, help="The table of other libraries, for the report.")
@click.option("--report", "report_file", type=PATH, help="The tables for people, written anew from all of them.")
def main(
    targets: tuple[str, ...],
    only: str,
    jobs: int,
    table_file: Path | None,
    peers_file: Path | None,
    report_file: Path | None,
) -> None:
    places = [
        (target, number)
        for target in targets or CHIPS
        for number, variant in enumerate(variants_of(target))
        if re.search(only, f"{variant.kernel}, {variant.case}")
    ]
    table = read_table(table_file) if table_file else []
    rows, wrong = compile_all(places, table, jobs)
    known = {key_of(variant, target) for target in CHIPS for variant in variants_of(target)}
    current = {row.key: row for row in table if row.triton != triton.__version__ or row.key in known}
    current |= {row.key: row for row in rows}
    if table_file:
        write_table(table_file, current.values())
    if report_file:
        peers = read_table(peers_file) if peers_file else []
        report_file.write_text(report(current.values(), len(known), peers), encoding="utf-8")
    print(*wrong, f"{len(rows)} variants, {len(wrong)} complaints", sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
