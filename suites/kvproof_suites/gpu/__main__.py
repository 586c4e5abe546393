"""``python -m kvproof_suites.gpu``: what ``make gpu`` runs.

Laws at the full tier and the benchmark for each implementation, compute-sanitizer on the smoke tier of one, and the
decode sweep; then a folder under reports/published, and a line for each point of kernels/NOTES.md, to be committed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import click

from kvproof_impls.built_in import BUILT_IN
from kvproof_reports.records import FILE_NAME
from kvproof_suites import published_folder
from kvproof_suites.cli import run_folders
from kvproof_suites.cli.terminal import show_table
from kvproof_suites.environment import gpu_name
from kvproof_suites.gpu import notes, publish
from kvproof_suites.gpu.steps import SWEEP, absent, steps, sweep
from kvproof_suites.step import FAILED, LIMIT_SECONDS, NOT_RUN, PASSED, Outcome, Step, run

OURS = "triton"
"""Whose kernel the sanitizers and kernels/NOTES.md are about."""
IMPLEMENTATIONS = " ".join([OURS, *(name for name, entry in BUILT_IN.items() if entry.needs_cuda)])
NO_DEVICE = "make gpu: torch finds no CUDA device on this machine, so nothing was verified"


@click.command(help=__doc__)
@click.option("--impl", default=IMPLEMENTATIONS, help="Names, separated by blanks or commas; default: all for GPUs.")
@click.option("--trace", type=click.Path(path_type=Path), help="Replayed first; without it, a made-up sample.")
@click.option("--tier", default="full", show_default=True, help="Of the laws.")
@click.option("--published", type=click.Path(path_type=Path), default=published_folder.PUBLISHED, show_default=True)
@click.option("--limit", type=click.IntRange(1), default=LIMIT_SECONDS, show_default=True, help="Seconds a step.")
@click.option("--only", default="", help="Only steps whose name this is found in; the others are told as not run.")
@click.option("--results", type=click.Path(path_type=Path), help="Of an earlier run, to go on with; else a new one.")
@click.option("--dry-run", is_flag=True, help="Show the commands; needs no device.")
def main(
    impl: str,
    trace: Path | None,
    tier: str,
    published: Path,
    limit: int,
    only: str,
    results: Path | None,
    dry_run: bool,
) -> None:
    implementations = published_folder.names_of_folders(impl.replace(",", " ").split())
    folder = results or Path("results", f"{datetime.now(UTC):%Y%m%d-%H%M%S}-gpu")
    listed = steps(implementations, folder, trace, OURS, tier, missing=(lambda name: None) if dry_run else absent)
    if dry_run:
        shown = [step for step in (*listed, sweep(implementations, folder)) if only in step.name]
        click.echo("\n".join(map(str, shown)))
        return
    gpu = device()
    if gpu is None:
        sys.exit(NO_DEVICE)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = [begin(step, limit, only) for step in listed]
    judged = published_folder.with_records(folder, implementations)
    publish.gather_laws(folder, judged)
    swept = begin(sweep(judged, folder), limit, only)
    outcomes.append(swept)
    target = published_folder.claim(published, published_folder.name_of(gpu, date.today()))
    publish.publish(folder, target, outcomes, [*implementations, SWEEP])
    if swept.status != NOT_RUN:
        write_notes(gpu, target / SWEEP)
    sys.exit(conclude(outcomes, target))


def device() -> str | None:
    import torch

    return gpu_name("cuda") if torch.cuda.is_available() else None


def begin(step: Step, limit: float, only: str) -> Outcome:
    if only not in step.name:
        return Outcome(step.name, NOT_RUN, f"left out by --only={only}", 0.0)
    click.echo(f"== {step.name}", err=True)
    return run(step, limit)


def write_notes(gpu: str, swept: Path) -> None:
    """Of our kernel, where it was timed and there is a table to write to."""
    if not (swept / FILE_NAME).is_file() or not notes.NOTES.is_file():
        return
    (records,) = run_folders.read([swept])
    ours = [record for record in records.latest("benchmark") if record["implementation"] == OURS]
    notes.append(notes.NOTES, notes.rows(gpu, date.today(), notes.version_of(), ours))


def conclude(outcomes: Sequence[Outcome], target: Path) -> int:
    """The last lines of the run, and its exit code: 1 where a step failed, or none was run."""
    show_table(["step", "", "minutes", ""], [[o.name, o.status, f"{o.seconds / 60:.1f}", o.detail] for o in outcomes])
    click.echo(f"to be committed: {target}, {notes.NOTES}")
    failed = [outcome.name for outcome in outcomes if outcome.status == FAILED]
    if failed:
        click.echo(f"make gpu: not verified: {'; '.join(failed)}", err=True)
    elif not any(outcome.status == PASSED for outcome in outcomes):
        click.echo("make gpu: nothing was run, so nothing was verified", err=True)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    main()
