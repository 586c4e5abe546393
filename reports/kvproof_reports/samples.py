"""Samples of one benchmark as the fields of its record, and records of one benchmark put together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from kvproof_reports.schema import MOST_SAMPLES
from kvproof_reports.statistics import FEWEST_SAMPLES, THRESHOLD, interval

DIGITS = 6
"""Significant ones of a sample on disk; clocks have fewer."""


def sample_fields(
    samples_ms: Sequence[float], processes: Sequence[int] | None = None, core_ms: Sequence[float] | None = None
) -> dict[str, Any]:
    """What a record says of samples in milliseconds.

    Args:
        samples_ms: positive, in the order in which they were taken.
        processes: how many of them each process gave, in order; without it, one gave all.
        core_ms: the same less waits for a core, where they are known.
    """
    q1, median, q3 = _quartiles(samples_ms)
    known = interval(samples_ms, processes=processes) if len(samples_ms) >= FEWEST_SAMPLES else None
    kept = _thinned(samples_ms, processes or [len(samples_ms)])
    core = core_ms and _thinned(core_ms, processes or [len(samples_ms)])
    return {
        "median_ms": median,
        "q1_ms": q1,
        "q3_ms": q3,
        "low_ms": known and known.low,
        "high_ms": known and known.high,
        "num_samples": len(samples_ms),
        "samples_ms": _rounded(kept),
        "core_ms": core and _rounded(core),
        "samples_per_process": [len(part) for part in kept] if len(kept) > 1 else None,
    }


def _quartiles(samples: Sequence[float]) -> list[float]:
    return statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3


def _rounded(parts: Sequence[Sequence[float]]) -> list[float]:
    return [float(f"{sample:.{DIGITS}g}") for part in parts for sample in part]


def _thinned(samples: Sequence[float], sizes: Sequence[int]) -> list[Sequence[float]]:
    """Of a process that has more than its part of what fits, every second, third, ... sample; order tells of
    disturbances."""
    parts = [samples[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]
    most = MOST_SAMPLES // len(parts)
    return [part[:: -(-len(part) // most)] for part in parts]


def is_calm(sample: float, on_core: float) -> bool:
    """Whether a sample did not wait for a core for more than is of no practical importance."""
    return sample - on_core <= THRESHOLD * sample


def without_waits(records: Sequence[Mapping[str, Any]]) -> list[tuple[list[float], list[int]]] | None:
    """Of each record, times without waits for a core, and how many each process gave; None where one does not know.

    Whoever waits finds less in its caches, and takes longer afterwards. So calm samples count, of the processes that
    have FEWEST_SAMPLES of them; where a record has no such process, every sample of every record does."""
    if not all(record["core_ms"] for record in records):
        return None
    calm = [[[core for sample, core in part if is_calm(sample, core)] for part in _pairs(one)] for one in records]
    kept = [[part for part in parts if len(part) >= FEWEST_SAMPLES] for parts in calm]
    if not all(kept):
        kept = [[[core for _, core in part] for part in _pairs(one)] for one in records]
    return [([one for part in parts for one in part], [len(part) for part in parts]) for parts in kept]


def _pairs(record: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """(elapsed, without waits) of every sample, by process."""
    both, sizes = list(zip(record["samples_ms"], record["core_ms"], strict=True)), processes_of(record)
    return [both[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]


def processes_of(record: Mapping[str, Any]) -> list[int]:
    """How many of the record's samples each process gave."""
    return list(record["samples_per_process"] or [len(record["samples_ms"])])


def together(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record for several of one benchmark, each of a process of its own: the last of them, with all samples.

    Figures that were made from a median (rates, the tax) would speak of the last process alone; they are made anew.
    """
    known = [record for record in records if record["samples_ms"]]
    if len(known) < 2:
        return dict((known or records)[-1])
    last = known[-1]
    samples = [sample for record in known for sample in record["samples_ms"]]
    core = [sample for record in known for sample in record["core_ms"] or ()]
    sizes = [size for record in known for size in processes_of(record)]
    fields = sample_fields(samples, sizes, core if len(core) == len(samples) else None)
    change = fields["median_ms"] / last["median_ms"]
    rates = {name: last[name] / change for name in RATES if last[name] is not None}
    per_time = {"ns_per_token": last["ns_per_token"] and last["ns_per_token"] * change}
    return {**last, **fields, **rates, **per_time, "tax": None, "waited": _mean([one["waited"] for one in known])}


def _mean(shares: Sequence[float | None]) -> float | None:
    found = [share for share in shares if share is not None]
    return sum(found) / len(found) if found else None


RATES = ("tokens_per_second", "gb_per_second", "share_of_roof")
"""Figures that are something over the median."""
