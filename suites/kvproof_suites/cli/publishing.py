"""From a run folder to what people read: report.md, report.html, MLflow. A missing extra is told, never fatal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvproof_suites.cli.terminal import say
from kvproof_suites.laws import LAWS

if TYPE_CHECKING:
    from kvproof_reports.records import Run


def write_reports(runs: Sequence[Run], folder: Path) -> list[Path]:
    """report.md and report.html in ``folder``: those of them that could be written."""
    from kvproof_reports.html import write_html
    from kvproof_reports.markdown import write_markdown

    folder.mkdir(parents=True, exist_ok=True)
    laws = {law.id: {"title": law.title, "why": law.why, "origin": law.origin} for law in LAWS.values()}
    writers: dict[str, Callable[[Sequence[Run], Path], Path]] = {
        "report.md": write_markdown,
        "report.html": partial(write_html, laws=laws),
    }
    return [folder / name for name, write in writers.items() if done(name, write, runs, folder / name)]


def log_to_mlflow(folder: Path, uri: str) -> bool:
    """Whether the run is in MLflow now. A server that fails is told by the sink, in one line."""
    from kvproof_reports.mlflow_sink import log_run

    return done("MLflow", lambda: log_run(folder, tracking_uri=uri).status != "failed")


def done(what: str, action: Callable[..., object], *arguments: object) -> bool:
    """What ``action`` gives, as a flag; a package that is missing is named with the line that installs it."""
    from kvproof_reports.extras import MissingExtra

    try:
        return bool(action(*arguments))
    except MissingExtra as error:
        click.echo(f"{what} left out: {error}", err=True)
        return False


def conclude(run: Run, written: Sequence[Path], logged_to: str | None) -> None:
    """The last lines of a run: a verdict for each implementation, and where everything lies."""
    from kvproof_reports.mlflow_client import without_password
    from kvproof_reports.verdict import subjects

    click.echo("")
    for subject in subjects([run]):
        if subject.laws:
            told = ", ".join(f"{number} {outcome}" for outcome, number in subject.counts.items() if number)
            say(f"{subject.name}: {subject.verdict} ({told.replace('_', ' ')})")
    for path in written:
        click.echo(f"report: {path}")
    if logged_to:
        click.echo(f"MLflow: {without_password(logged_to)}")
