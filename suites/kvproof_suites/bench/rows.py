"""One row of a benchmark: from the result of its contest to pytest-benchmark and the records of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvproof_suites.bench.cells import Cell, HostCell
from kvproof_suites.bench.contests import NotTimed, Timed
from kvproof_suites.bench.standing import Standing
from kvproof_suites.bench.timing import tell
from kvproof_suites.outcome import not_run_here

SWITCHED_OFF = "pytest-benchmark is switched off in this run, as it is under pytest-xdist: run it in one process"

EVERY_SAMPLE = ("samples_ms", "core_ms")
"""Which pytest-benchmark keeps by itself."""

Record = Callable[..., None]


def write_row(
    implementation: str,
    cell: Cell | HostCell,
    device: str,
    standing: Standing,
    result: Callable[[], Timed | NotTimed],
    benchmark: Any,
    record: Record,
) -> None:
    """Record the row; skips the test where there is no figure, with the reason."""
    row = {"implementation": implementation, "device": device, **cell.fields()}
    benchmark.group = cell.title
    benchmark.extra_info.update(row)
    if (reason := SWITCHED_OFF if not benchmark.enabled else standing.reason if standing.broken else None) is not None:
        record("benchmark", **row, timed=False, reason=reason, verified=standing.verified)
        not_run_here(reason)
    found = result()
    if isinstance(found, NotTimed):
        record("benchmark", **row, timed=False, reason=found.reason, verified=standing.verified, **found.more)
        not_run_here(found.reason)
    tell(benchmark, found.timing)
    figures: Mapping[str, Any] = {**found.timing.fields(), **found.figures}
    benchmark.extra_info.update({name: value for name, value in figures.items() if name not in EVERY_SAMPLE})
    told = {"timed": True, "verified": standing.verified, "reason": standing.reason}
    record("benchmark", **{**row, **figures, **told})
