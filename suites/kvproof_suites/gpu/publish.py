"""A GPU run as a folder to commit: records, report, environment, what the sanitizers said, and how each step ended."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click

from kvproof_reports.records import FILE_NAME, RunWriter, read_run
from kvproof_reports.schema import COMMON
from kvproof_suites.cli import publishing, run_folders
from kvproof_suites.environment import describe
from kvproof_suites.gpu import sanitizer
from kvproof_suites.gpu.steps import LAWS, Outcome

PUBLISHED = Path("reports", "published")


def name_of(gpu: str, day: date) -> str:
    """ "NVIDIA H200" on a day: ``nvidia-h200-2026-11-30``."""
    return f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}-{day.isoformat()}"


def claim(parent: Path, name: str) -> Path:
    """A folder of that name which holds nothing yet; a second run of a day is ``name-2``."""
    for number in range(1, 1000):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent / name}: a thousand runs of one day")


def names_of_folders(names: Sequence[str]) -> list[str]:
    """``names`` of implementations, of which each becomes a folder of the run.

    Raises:
        click.UsageError: one that would lie elsewhere.
    """
    for name in names:
        if name in ("", ".", "..") or set(name) & {"/", "\\", "\0"}:
            raise click.UsageError(f"--impl: {name!r} can't name a folder; give a name, or package.module:factory")
    return list(names)


def with_records(run: Path, names: Sequence[str]) -> list[str]:
    """Those that have a folder with records: a name that is unknown or unavailable here leaves none."""
    return [name for name in names if (run / name / FILE_NAME).is_file()]


def gather_laws(run: Path, names: Sequence[str]) -> None:
    """One run with the laws of each implementation, out of its own."""
    writer = RunWriter(run / LAWS)
    for name in names:
        own = (law for law in read_run(run / name).latest("law") if law["implementation"] == name)
        for law in own:
            writer.write("law", **{field: value for field, value in law.items() if field not in COMMON})


def publish(run: Path, folder: Path, outcomes: Sequence[Outcome], names: Sequence[str]) -> None:
    """Fill ``folder`` from the folder of a run; ``names`` are the folders in it whose records are wanted."""
    kept = with_records(run, names)
    for name in kept:
        (folder / name).mkdir()
        shutil.copyfile(run / name / FILE_NAME, folder / name / FILE_NAME)
    if kept:
        publishing.write_reports(run_folders.read([folder / name for name in kept]), folder)
    for tool in sanitizer.TOOLS:
        if (run / f"{tool}.log").is_file():
            (folder / f"{tool}.txt").write_text(sanitizer.excerpt(run / f"{tool}.log"), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(page(folder.name, outcomes), encoding="utf-8")
    without_folders(folder)


def environment() -> dict[str, Any]:
    """Machine and versions, and what decides the roof."""
    import torch

    if not torch.cuda.is_available():
        return describe("cpu")
    about = torch.cuda.get_device_properties(0)
    memory = {"memory_bytes": about.total_memory, "cache_bytes": about.L2_cache_size}
    processors = {"num_multiprocessors": about.multi_processor_count, "cuda": torch.version.cuda}
    return {**describe("cuda"), **memory, **processors}


def page(title: str, outcomes: Sequence[Outcome]) -> str:
    rows = [f"| {o.name} | {o.status} | {o.seconds / 60:.1f} | {o.detail.replace('|', '/')} |" for o in outcomes]
    head = [f"# {title}", "", "| step | | minutes | |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, "", "What `make gpu` found; [environment.json](environment.json) says where.", ""])


def without_folders(folder: Path, run: Path | None = None) -> None:
    """Names of this machine's folders are nobody's business: the working folder becomes ".", the home "~", and that of
    the run, wherever it is, its own name."""
    shown = [(Path.cwd(), b"."), (Path.home(), b"~")]
    if run is not None:
        shown.insert(0, (run.resolve(), run.name.encode()))
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_bytes()
            for place, name in shown:
                if place != Path("/"):
                    text = text.replace(str(place).encode(), name)
            path.write_bytes(text)
