"""What a person sees on a terminal, and what a pipe gets instead."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """A rich table on a terminal; in a pipe, tab-separated lines under one header, for cut and awk."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in [columns, *cells]:
            click.echo("\t".join(part.replace("\n", " ") for part in line))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    Console().print(table)


def show_json(value: Any) -> None:
    """One JSON document on standard output, and nothing else."""
    click.echo(json.dumps(value, indent=2, default=str))


def note(text: str) -> None:
    """Progress, for a person only: on standard error, and not at all when nobody is looking."""
    if sys.stderr.isatty():
        click.echo(text, err=True)
