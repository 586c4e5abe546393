"""Run folders named on a command line, read with errors that a person can use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvproof_reports.records import Run


def read(folders: Sequence[Path]) -> list[Run]:
    """The runs; a fault of a results file is told as file, line and field."""
    from kvproof_reports.records import RecordError, read_run

    try:
        return [read_run(folder) for folder in folders]
    except RecordError as error:
        raise click.ClickException(_few_lines(str(error))) from None


def _few_lines(text: str, shown: int = 2) -> str:
    lines = text.splitlines()
    more = f"\n(and {len(lines) - shown} more)" if len(lines) > shown else ""
    return "\n".join(lines[:shown]) + more
