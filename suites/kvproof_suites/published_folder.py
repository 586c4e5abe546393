"""A folder under reports/published: how it is called, claimed, and kept free of the names of this machine's folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click

from kvproof_reports.records import FILE_NAME

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
