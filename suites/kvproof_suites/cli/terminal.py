"""What a person sees on a terminal, and what a pipe gets instead."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click

from kvproof_reports.texts import visible

NEVER_BROKEN = 12
"""Characters of a word that is not broken: figures are shorter, and half a figure is a wrong one."""


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """A rich table on a terminal, or a line for each filled cell where it has no room for the columns; in a pipe,
    tab-separated lines under one header, for cut and awk. Cells may be a stranger's: none steers the terminal."""
    headings, *cells = [["" if cell is None else visible(str(cell)) for cell in row] for row in [columns, *rows]]
    if sys.stdout is None or not sys.stdout.isatty():  # None: it was closed before we came
        for line in [headings, *cells]:
            click.echo("\t".join(part.replace("\n", " ").replace("\t", " ") for part in line))
        return
    _draw(headings, cells, title and visible(title))


def _draw(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(title=title and Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(Text(name), overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    if _num_columns_needed([columns, *cells]) <= console.width:
        console.print(table)
        return
    if title:
        console.print(Text(title), style="italic")
    for line in cells:
        for name, cell in zip(columns, line, strict=True):
            if cell:
                console.print(Text(f"{name}: {cell}"))
        console.print()


def _num_columns_needed(lines: Sequence[Sequence[str]]) -> int:
    """Of a terminal: the longest word of each column, as far as it must stay whole, and the space between columns."""
    words = [[word for cell in column for word in cell.split()] for column in zip(*lines, strict=True)]
    return sum(min(NEVER_BROKEN, max(map(len, found), default=0)) for found in words) + 3 * len(words)


def say(text: str, err: bool = False) -> None:
    """A line with words out of a file, which may be a stranger's."""
    click.echo(visible(text), err=err)


def show_json(value: Any) -> None:
    """One JSON document on standard output, and nothing else."""
    click.echo(json.dumps(value, indent=2, default=str))


def note(text: str) -> None:
    """Progress, for a person only: on standard error, and not at all when nobody is looking."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def working(text: str) -> AbstractContextManager[Any]:
    """Something that moves, on a terminal, while a person waits."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)
