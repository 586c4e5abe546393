"""``python -m kvproof_suites.matrix``: what ``make matrix`` runs.

Every implementation that is available on this machine goes through all laws, each in a run of its own; then a folder
under reports/published holds the records, packed, and the report, to be committed. Who is not available is in it too,
with the reason.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import click

from kvproof_impls.built_in import BUILT_IN
from kvproof_reports.records import FILE_NAME, RunWriter, read_run
from kvproof_suites import checks, published_folder
from kvproof_suites.cli import publishing, run_folders
from kvproof_suites.cli.terminal import show_table
from kvproof_suites.environment import cpu_name, describe
from kvproof_suites.exit_codes import NOTHING_VERIFIED
from kvproof_suites.isolation.probe import Availability, availability
from kvproof_suites.options import TIERS
from kvproof_suites.step import FAILED, NOT_RUN, Outcome, Step, run

LIMIT_SECONDS = 3600
"""Of the laws of one implementation."""
KEPT = "kept"
"""Of an earlier run, and not judged again."""
ABSENT = "not-available"
"""The folder that holds who could not be judged."""


@click.command(help=__doc__)
@click.option("--impl", default=",".join(BUILT_IN), help="Names with commas between them; default: all built-in ones.")
@click.option("--tier", type=click.Choice(TIERS), default="full", show_default=True, help="Of the laws.")
@click.option("--published", type=click.Path(path_type=Path), default=published_folder.PUBLISHED, show_default=True)
@click.option("--limit", type=click.IntRange(1), default=LIMIT_SECONDS, show_default=True, help="Seconds for each.")
@click.option("--results", type=click.Path(path_type=Path), help="Of an earlier run: who is in it is not judged again.")
def main(impl: str, tier: str, published: Path, limit: int, results: Path | None) -> None:
    names = published_folder.names_of_folders(checks.names_of(impl))
    folder = results or Path("results", f"{datetime.now(UTC):%Y%m%d-%H%M%S}-matrix")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = dict(zip(names, pool.map(availability, names), strict=True))
    outcomes = [judge(name, found[name], folder, tier, limit) for name in names]
    target = published_folder.claim(published, published_folder.name_of(cpu_name(), date.today()))
    fill(target, folder, found, outcomes, tier)
    show_table(
        ["implementation", "", "minutes", ""], [[o.name, o.status, f"{o.seconds / 60:.1f}", o.detail] for o in outcomes]
    )
    click.echo(f"to be committed: {target}")
    sys.exit(int(any(outcome.status == FAILED for outcome in outcomes)))


def judge(name: str, found: Availability, folder: Path, tier: str, limit: float) -> Outcome:
    if found.reason is not None:
        return Outcome(name, NOT_RUN, found.reason, 0.0)
    if said := verdict_in(folder / name):
        return Outcome(name, KEPT, said, 0.0)
    click.echo(f"== {name}", err=True)
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvproof_suites", f"--kvproof-impl={name}", "-n", "2", "-q"]
    command += [f"--kvproof-tier={tier}", f"--kvproof-results={folder / name}", "-p", "no:cacheprovider"]
    outcome = run(Step(name, tuple(command), {"OMP_NUM_THREADS": "1"}), limit)
    return replace(outcome, detail=verdict_in(folder / name) or outcome.detail)


def verdict_in(folder: Path) -> str | None:
    """The verdict of a run that came to its end."""
    if not (folder / FILE_NAME).is_file():
        return None
    ends = read_run(folder).latest("end")
    return str(ends[-1]["verdict"]) if ends else None


def fill(target: Path, folder: Path, found: Mapping[str, Availability], outcomes: Sequence[Outcome], tier: str) -> None:
    """Records as they are but for the names of this machine's folders, the report, and a page to begin with."""
    tell_absent(folder / ABSENT, found, tier)
    kept = published_folder.with_records(folder, [*found, ABSENT])
    publishing.write_reports(run_folders.read([folder / name for name in kept]), target)
    for name in kept:
        (target / name).mkdir()
        (target / name / FILE_NAME).write_bytes((folder / name / FILE_NAME).read_bytes())
    (target / "README.md").write_text(page(target.name, outcomes, found), encoding="utf-8")
    published_folder.without_folders(target, folder)
    for path in target.glob(f"*/{FILE_NAME}"):
        path.with_name(f"{FILE_NAME}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()


def tell_absent(folder: Path, found: Mapping[str, Availability], tier: str) -> None:
    missing = {name: one.reason for name, one in found.items() if one.reason is not None}
    if missing and not (folder / FILE_NAME).exists():
        writer = RunWriter(folder)
        writer.write(
            "session",
            implementations=[
                {"name": name, "summary": checks.summary_of(name), "unavailable": reason}
                for name, reason in missing.items()
            ],
            tier=tier,
            seed=0,
            device="cpu",
            command=["make", "matrix"],
            environment=describe("cpu"),
        )
        writer.write("end", exit_code=NOTHING_VERIFIED, verdict="none of them was run", counts={}, seconds=0.0)


def page(title: str, outcomes: Sequence[Outcome], found: Mapping[str, Availability]) -> str:
    rows = [
        f"| `{o.name}` | {found[o.name].version or ''} | {o.status} | {o.detail.replace('|', '/')} |" for o in outcomes
    ]
    head = [f"# {title}", "", f"{cpu_name()}, {os.cpu_count()} cores. Law by law: [report.md](report.md).", ""]
    head += ["| implementation | version | | |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])


if __name__ == "__main__":
    main()
