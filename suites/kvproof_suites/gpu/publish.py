"""A GPU run as a folder to commit: records, report, environment, what the sanitizers said, and how each step ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof_reports.records import FILE_NAME, RunWriter, read_run
from kvproof_reports.schema import COMMON
from kvproof_suites.cli import publishing, run_folders
from kvproof_suites.environment import describe
from kvproof_suites.gpu import sanitizer
from kvproof_suites.gpu.steps import LAWS
from kvproof_suites.published_folder import with_records, without_folders
from kvproof_suites.step import Outcome


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
