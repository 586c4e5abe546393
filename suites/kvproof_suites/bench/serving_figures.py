"""From the samples of a served workload to the figures that allocators are compared by, over several repeats."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvproof_suites.bench.serving_loop import Samples, run
from kvproof_suites.bench.serving_workload import (
    BLOCK_SIZE,
    MOST_RUNNING,
    NUM_BLOCKS,
    NUM_REQUESTS,
    SHARE_WITH_PREFIX,
    Workload,
    draw,
    draw_stable,
)
from kvproof_suites.outcome import LawBroken

Figures = dict[str, Any]

SHARES = (0.0, SHARE_WITH_PREFIX)
TIMES = (
    "ns_per_append",
    "ns_per_append_stable",
    "us_per_admit",
    "us_per_admit_p99",
    "us_per_free",
    "us_per_step",
)
"""Figures that are measured anew in each repeat; the others must come out the same."""


def workloads(num_requests: int = NUM_REQUESTS, seed: int = 0) -> list[Workload]:
    return [draw(share, num_requests, seed) for share in SHARES]


def warm_up(make: Callable[[int, int], Any]) -> None:
    """What happens once in a process is no cost of a call: imports, compilation. The second time all prompts hit."""
    pool, few = make(NUM_BLOCKS, BLOCK_SIZE), draw_stable(num_seqs=8, num_steps=2 * BLOCK_SIZE + 1)
    for _ in range(2):
        run(pool, few, most_seconds=math.inf)


def repeat(make: Callable[[int, int], Any], given: Sequence[Workload], stable: Workload) -> dict[str, Figures]:
    """One repeat: every workload once, each in a fresh pool; figures by the name of the workload.

    Raises:
        LawBroken: what the allocator did was wrong, see ``serving_loop.run``.
    """
    steady = run(make(NUM_BLOCKS, BLOCK_SIZE), stable)
    per_append = median_step(steady) / len(stable.prompts)
    return {
        workload.name: figures(run(make(NUM_BLOCKS, BLOCK_SIZE), workload), workload)
        | {"ns_per_append_stable": per_append}
        for workload in given
    }


def figures(samples: Samples, workload: Workload) -> Figures:
    """Of one served workload. An append is one row of a full step, the median of all full steps; with commit, and with
    the step tensors where the allocator gives them. ``us_per_step`` has them always. Admissions and frees: the mean.
    ``events`` are the single times of these, in their order, for ``summarize``."""
    num_rows = min(MOST_RUNNING, len(workload.prompts))
    step, tensors = median_step(samples), statistics.median(samples.tensors) if samples.tensors else 0
    return {
        "ns_per_append": step / num_rows,
        "us_per_admit": statistics.fmean(samples.admit) / 1e3,
        "us_per_admit_p99": float(np.percentile(samples.admit, 99)) / 1e3,
        "us_per_free": sum(time for time, _ in samples.free) / len(workload.prompts) / 1e3,
        "us_per_step": (step + tensors) / 1e3,
        "step_tensors_included": samples.step_tensors_included,
        "hit_rate": samples.num_cached / workload.num_prompt_tokens,
        "min_free_blocks": samples.min_free_blocks,
        "events": {"admit": samples.admit, "free": [time for time, _ in samples.free]},
    }


def median_step(samples: Samples) -> float:
    """Nanoseconds of the steps with as many rows as there ever were."""
    full = max(rows for _, rows in samples.step)
    return statistics.median(time for time, rows in samples.step if rows == full)


def summarize(repeats: Sequence[Figures]) -> Figures:
    """Medians over the repeats, and ``spread``: the lowest and the highest of each time.

    The same admission does the same work in every repeat, and so do the departures of a step. The median is therefore
    taken for each of them, before the mean and the percentile over all: a process that took the processor away for
    some milliseconds once is no cost of the allocator.

    Raises:
        LawBroken: two repeats of one seeded workload hit or held otherwise.
    """
    first = repeats[0]
    constant = {name: value for name, value in first.items() if name not in (*TIMES, "events")}
    for other in repeats[1:]:
        if (differing := {name: other[name] for name in constant}) != constant:
            raise LawBroken(f"not timed: the same requests gave {constant} in one repeat and {differing} in another")
    series: Mapping[str, list[float]] = {name: [each[name] for each in repeats] for name in TIMES if name in first}
    medians = {name: statistics.median(values) for name, values in series.items()}
    spread = {name: [min(values), max(values)] for name, values in series.items()}
    medians |= by_event([each["events"] for each in repeats])
    return medians | constant | {"spread": spread, "num_repeats": len(repeats)}


def by_event(repeats: Sequence[Mapping[str, Sequence[int]]]) -> Figures:
    admit, free = (np.median([each[kind] for each in repeats], axis=0) for kind in ("admit", "free"))
    return {
        "us_per_admit": float(admit.mean()) / 1e3,
        "us_per_admit_p99": float(np.percentile(admit, 99)) / 1e3,
        "us_per_free": float(free.sum()) / len(admit) / 1e3,
    }
