"""A baseline: a results file to compare with. It counts only where nothing but the implementations may have changed."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kvproof_reports.gate_cells import Cells, cells_of
from kvproof_reports.records import FILE_NAME, Run, RunWriter
from kvproof_reports.schema import COMMON, SCHEMA_VERSION

MACHINE = ("platform", "cpu", "num_cpus", "gpu", "driver", "cuda")
VERSIONS = ("python", "torch", "triton", "kvproof", "spec")
UNKNOWN_IS_NO_DIFFERENCE = ("driver", "cuda", "spec")
"""Facts that a run may leave unsaid."""


class BaselineError(ValueError):
    """A baseline that says nothing about the run. The text says why, and what to do."""


def differences(baseline: Run, runs: Sequence[Run]) -> list[str]:
    """What else differs than the implementations, for people: ``gpu: H100 in the baseline, A100 in the run``."""
    before, after = facts([baseline]), facts(runs)
    if not before:
        return ["the baseline has no session record, so that its machine is unknown"]
    told = [
        f"{name}: {_told(before[name])} in the baseline, {_told(after[name])} in the run"
        for name in before
        if name in after and before[name] != after[name] and _known(name, before[name], after[name])
    ]
    old = sorted({record["schema_version"] for record in baseline.records} - {SCHEMA_VERSION})
    return told + [f"schema: version {version} in the baseline, {SCHEMA_VERSION} in the run" for version in old]


def facts(runs: Iterable[Run]) -> dict[str, set[str | None]]:
    """Of all sessions: device, machine and versions; the Python version without its last part."""
    found: dict[str, set[str | None]] = {}
    for session in (session for run in runs for session in run.latest("session")):
        known = {name: session["environment"][name] for name in (*MACHINE, *VERSIONS)}
        known["python"] = (known["python"] or "").rpartition(".")[0]
        for name, value in {"device": session["device"], **known}.items():
            found.setdefault(name, set()).add(None if value is None else str(value))
    return found


def _known(name: str, before: set[str | None], after: set[str | None]) -> bool:
    return name not in UNKNOWN_IS_NO_DIFFERENCE or None not in before | after


def _told(values: set[str | None]) -> str:
    return " and ".join(sorted(value or "none" for value in values))


def require_comparable(baseline: Run, runs: Sequence[Run], before: Cells, after: Cells, any_machine: bool) -> None:
    """
    Raises:
        BaselineError: another machine or version (unless ``any_machine``), or nothing in common.
    """
    if not any_machine and (told := differences(baseline, runs)):
        raise BaselineError(
            f"{baseline.path}: is not about the same machine and versions: {'; '.join(told)}; "
            "write a new one with --update, or compare all the same with --allow-other-machine"
        )
    if not (before.tests.keys() & after.tests.keys() or before.timed().keys() & after.timed().keys()):
        raise BaselineError(
            f"{baseline.path}: shares no test and no benchmark with the run: it is about {_about(before)}, and the run "
            f"about {_about(after)}; name the run's own baseline, or write one with --update"
        )


def require_known(names: Sequence[str], before: Cells, after: Cells) -> None:
    """
    Raises:
        BaselineError: a name that neither knows.
    """
    known = list(dict.fromkeys([*before.implementations, *after.implementations]))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"
            raise BaselineError(f"no implementation {name!r} in the baseline or the run; {hint}")


def _about(cells: Cells) -> str:
    names = ", ".join(cells.implementations) or "nothing"
    return f"{names} ({len(cells.tests)} tests, {len(cells.timed())} timed benchmarks)"


def write_baseline(path: Path, runs: Sequence[Run]) -> Cells:
    """Write ``path`` anew from ``runs``, as one results file with every sample. It is whole or not there.

    Raises:
        BaselineError: nothing to keep, or records of an older version, which hold no samples.
        OSError: the folder can't be written to.
    """
    cells = cells_of(runs)
    if not cells:
        raise BaselineError(f"{path}: not written: no test and no benchmark in {', '.join(str(r.path) for r in runs)}")
    if old := [run for run in runs if any(record["schema_version"] != SCHEMA_VERSION for record in run.records)]:
        raise BaselineError(
            f"{path}: not written: {old[0].path} is of an older version and has no samples; run it again"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".baseline-") as folder:
        writer = RunWriter(folder, run_id=path.stem)
        for record in (*_of_kind(runs, "session"), *cells.tests.values(), *cells.benchmarks.values()):
            writer.write(record["kind"], time_utc=record["time_utc"], **_own(record))
        os.replace(Path(folder, FILE_NAME), path)
    return cells


def _of_kind(runs: Sequence[Run], kind: str) -> list[dict[str, Any]]:
    return [record for run in runs for record in run.latest(kind)]


def _own(record: Any) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in COMMON}
