"""``kvproof report``: runs as people read them."""

from __future__ import annotations

from pathlib import Path

import click

from kvproof_suites.cli import publishing, run_folders


@click.command(short_help="report.html and report.md from runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the files; without it, the first RUN.")
def command(runs: tuple[Path, ...], output: Path | None) -> None:
    """Write report.html and report.md from the results of RUNs.

    RUN is a folder that holds a results.jsonl. Several runs stand side by side: which law holds for which
    implementation, with the reasons, and throughput against block size.

    \b
    kvproof report results/20260101-120000-triton
    kvproof report results/* --output=comparison
    """
    found, folder = run_folders.read(runs), output or _folder(runs[0])
    try:
        written = publishing.write_reports(found, folder)
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror}; --output names another") from None
    for path in written:
        click.echo(path)
    if not written:
        raise click.ClickException("no report could be written")


def _folder(run: Path) -> Path:
    return run if run.is_dir() else run.parent
