"""``python -m selftest.nightly.mutation``: change one operator at a time, and see whether the laws notice.

cosmic-ray changes files in place, so that all of it happens in a copy of the tree. A mutant that every law lets pass is
printed with its change: it is equivalent, or a test is missing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SHELVES = ("reference", "kernels", "traces", "impls", "reports", "suites")

TARGETS: dict[str, tuple[str, str, str]] = {
    "reference": ("reference/kvproof_reference/allocator.py", "allocator", "reference"),
    "paged-python": ("impls/kvproof_impls/paged_python/allocator.py", "allocator", "paged-python"),
    "paged-python-pool": ("impls/kvproof_impls/paged_python/pool.py", "allocator", "paged-python"),
    "torch": ("impls/kvproof_impls/torch_gather.py", "kernel", "torch"),
}
"""Module, laws, implementation that puts the module under them."""

CONFIG = """[cosmic-ray]
module-path = "{module}"
timeout = {seconds}.0
excluded-modules = []
test-command = "{python} -m pytest suites/kvproof_suites/{laws} --impl={impl} -x -q --no-header -p no:cacheprovider \
--results={results}"

[cosmic-ray.distributor]
name = "local"

[cosmic-ray.filters.operators-filter]
exclude-operators = ["core/ReplaceBinaryOperator_BitOr_.*"]
"""
"""Annotations are full of |, which nobody evaluates."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m selftest.nightly.mutation")
    parser.add_argument("targets", nargs="*", default=[*TARGETS], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--sample", type=int, help="try this many mutants of each target, drawn; default: all")
    parser.add_argument("--seconds", type=int, default=300, help="a mutant that takes longer counts as killed")
    asked = parser.parse_args()
    for target in asked.targets:
        with tempfile.TemporaryDirectory(prefix="kvproof-mutation-") as folder:
            copy = copy_tree(Path(folder))
            judge(target, copy, asked.sample, asked.seconds)
    return 0


def copy_tree(folder: Path) -> Path:
    copy = folder / "tree"
    ignored = shutil.ignore_patterns("__pycache__", ".*", "results", "dist")
    for shelf in SHELVES:
        shutil.copytree(ROOT / shelf, copy / shelf, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def judge(target: str, copy: Path, sample: int | None, seconds: int) -> None:
    """Print the score of one target and every mutant that survives."""
    module, laws, impl = TARGETS[target]
    settings = {"module": module, "laws": laws, "impl": impl, "seconds": seconds, "python": sys.executable}
    (copy / "mutation.toml").write_text(CONFIG.format(**settings, results=copy.parent / "records"), encoding="utf-8")
    call(copy, "cosmic_ray.cli", "init", "mutation.toml", "mutation.sqlite")
    call(copy, "cosmic_ray.tools.filters.operators_filter", "mutation.sqlite", "mutation.toml")
    total, left = thin_out(copy / "mutation.sqlite", sample)
    print(f"{target}: {total} mutants of {module}, {left} tried", flush=True)
    call(copy, "cosmic_ray.cli", "baseline", "mutation.toml")
    call(copy, "cosmic_ray.cli", "exec", "mutation.toml", "mutation.sqlite")
    report(target, copy / "mutation.sqlite")


def call(copy: Path, module: str, *arguments: str) -> None:
    path = os.pathsep.join([*(str(copy / shelf) for shelf in SHELVES), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=copy, env=environment, check=True)


def thin_out(session: Path, sample: int | None) -> tuple[int, int]:
    """(mutants, mutants left to try): mark all but a drawn ``sample`` as skipped."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(str(session), WorkDB.Mode.open) as db:
        pending = sorted(db.pending_work_items, key=place_of)
        total = len(pending)
        random.Random(0).shuffle(pending)
        for item in pending[sample:] if sample is not None else []:
            db.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return total, total if sample is None else min(total, sample)


def place_of(item: Any) -> tuple[Any, ...]:
    mutation = item.mutations[0]
    return mutation.start_pos, mutation.operator_name, mutation.occurrence


def report(target: str, session: Path) -> None:
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome, WorkerOutcome

    with use_db(str(session), WorkDB.Mode.open) as db:
        tried = [pair for pair in db.completed_work_items if pair[1].worker_outcome != WorkerOutcome.SKIPPED]
    survivors = [pair for pair in tried if pair[1].test_outcome == TestOutcome.SURVIVED]
    print(f"{target}: {len(tried) - len(survivors)} of {len(tried)} mutants killed")
    for item, result in survivors:
        changed = [
            line for line in (result.diff or "").splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        print(f"survivor at line {item.mutations[0].start_pos[0]}:", *changed, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
