"""``kvproof log``: runs into MLflow."""

from __future__ import annotations

from pathlib import Path

import click

from kvproof_suites.cli import publishing, run_folders


@click.command(short_help="Send the results of runs to MLflow.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--uri",
    envvar="MLFLOW_TRACKING_URI",
    show_envvar=True,
    default="sqlite:///mlflow.db",
    show_default=True,
    help="Tracking URI of MLflow.",
)
def command(runs: tuple[Path, ...], uri: str) -> None:
    """Send the results of RUNs to MLflow; what is there already is not doubled.

    RUN is a folder that holds a results.jsonl. A session becomes a parent run, each implementation a run under it,
    with block size as the step of its metrics.

    \b
    kvproof log results/20260101-120000-triton
    kvproof log results/* --uri=http://localhost:5000
    """
    from kvproof_reports.mlflow_client import without_password

    run_folders.read(runs)
    place = without_password(uri)
    for run in runs:
        if not publishing.log_to_mlflow(run, uri):
            raise click.ClickException(f"{run} is not in {place}; its records stay on disk")
        click.echo(f"{run} is in {place}")
