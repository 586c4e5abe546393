"""Runs named on a command line, read with errors that a person can use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from kvproof_reports.records import Run

Read = TypeVar("Read")


def read(folders: Sequence[Path]) -> list[Run]:
    """The runs; a fault of a results file is told as file, line and field."""
    from kvproof_reports.records import read_run

    return explained(lambda: [read_run(folder) for folder in folders])


def read_anywhere(names: Sequence[str], tracking_uri: str | None) -> list[Run]:
    """Runs on disk, or in MLflow where a name is the id of a run there and no path here."""
    return [read_one_anywhere(name, tracking_uri) for name in names]


def read_one_anywhere(name: str, tracking_uri: str | None) -> Run:
    from kvproof_reports.mlflow_source import mlflow_run_id, read_mlflow_run

    run_id = None if Path(name).exists() else mlflow_run_id(name)
    return read([Path(name)])[0] if run_id is None else explained(lambda: read_mlflow_run(run_id, tracking_uri))


def explained(action: Callable[[], Read]) -> Read:
    """What ``action`` gives; what is wrong with a run, as a person can use it."""
    from kvproof_reports.extras import MissingExtra
    from kvproof_reports.mlflow_source import MlflowRunError
    from kvproof_reports.records import RecordError

    try:
        return action()
    except (RecordError, MlflowRunError, MissingExtra) as error:
        raise click.ClickException(_few_lines(str(error))) from None


def _few_lines(text: str, shown: int = 2) -> str:
    lines = text.splitlines()
    more = f"\n(and {len(lines) - shown} more)" if len(lines) > shown else ""
    return "\n".join(lines[:shown]) + more
