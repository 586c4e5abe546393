"""Compile every configuration that the launcher can choose, for every chip, and print what each one takes.

    python -m kvproof_kernels.aot [--target sm_90] [--json resources.json]

Needs no GPU. Exits with 1 when one spills, takes more shared memory than the chip has, or can't be read. Head dims that
are padded to the same power of two share a compiled form, as do all block sizes and group sizes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kvproof_kernels.resources import KERNELS, TARGETS, TYPES, Resources, compile_resources

PADDED_HEAD_DIMS = (64, 128, 256)


def configurations(targets: tuple[str, ...] = tuple(TARGETS)) -> Iterator[tuple[str, str, int, str]]:
    """(kernel, target, head_dim, dtype) of everything that the launcher can choose; kernels that move bits know no
    dtype but its size."""
    for kernel in KERNELS:
        dtypes = TYPES if kernel in ("decode", "prefill") else ("float16", "float32")
        for target in targets:
            yield from ((kernel, target, head_dim, dtype) for head_dim in PADDED_HEAD_DIMS for dtype in dtypes)


def table(rows: list[Resources]) -> Table:
    """One line a configuration, complaints in red."""
    shown = Table(title="registers and spills a thread, shared memory a program")
    for heading in ("kernel", "chip", "head dim", "dtype", "warps", "registers", "spilled", "shared", "of", ""):
        shown.add_column(heading, justify="left" if heading in ("kernel", "chip", "dtype") else "right")
    for row in rows:
        shown.add_row(
            *(row.kernel, row.target, str(row.head_dim), row.dtype, str(row.num_warps), str(row.registers)),
            *(str(row.spill_bytes), f"{row.shared_bytes:,}", f"{row.shared_limit:,}", row.complaint or "ok"),
            style="red" if row.complaint else None,
        )
    return shown


@click.command(help=__doc__)
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Only this chip; repeatable."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows here as well."
)
def main(targets: tuple[str, ...], json_file: Path | None) -> None:
    console = Console()
    wanted = list(configurations(targets or tuple(TARGETS)))
    rows = [
        compile_resources(kernel, target, head_dim=head_dim, dtype=dtype)
        for kernel, target, head_dim, dtype in track(wanted, "compiling", console=Console(stderr=True))
    ]
    console.print(table(rows))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    wrong = [row for row in rows if row.complaint]
    console.print(f"{len(rows)} configurations, {len(wrong)} with a complaint")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
