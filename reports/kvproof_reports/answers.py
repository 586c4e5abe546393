"""What one benchmark record is, seen from another of the same work; and where nothing can be told, why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvproof_reports.figures import percent, plural
from kvproof_reports.samples import processes_of, without_waits
from kvproof_reports.statistics import CANT_TELL, CONFIDENCE, FEWEST_SAMPLES, THRESHOLD, compare

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """An answer for people."""

    answer: str
    ratio: float
    low: float | None
    """Of the interval of the ratio; both None where there is none."""
    high: float | None
    why: str | None = None
    """Nothing can be told, because ..."""
    less_waits: bool = False
    """Of times without waits for a core."""

    def as_object(self) -> dict[str, Any]:
        told = {"answer": self.answer, "ratio": self.ratio, "low": self.low, "high": self.high, "why": self.why}
        return {**told, "less_waits": self.less_waits}

    @property
    def interval(self) -> str:
        """``1.08 to 1.12``, empty where there is none."""
        return "" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


def tell(before: Record, after: Record, threshold: float = THRESHOLD, confidence: float = CONFIDENCE) -> Told:
    """Both records are timed. ``threshold`` and ``confidence`` as for ``statistics.compare``.

    Times without waits for a core are compared where both records have them: those are a matter of the implementation,
    the waits are a matter of what else ran."""
    ratio = after["median_ms"] / before["median_ms"] if before["median_ms"] else math.inf
    known = without_waits([before, after])
    why = _unlike(before, after) or _unfit(before, "before") or _unfit(after, "after")
    if why is None and known is None:
        why = _disturbed(before, "before", threshold) or _disturbed(after, "after", threshold)
    if why is not None:
        return Told(CANT_TELL, ratio, None, None, why)
    (a, sizes_a), (b, sizes_b) = known or [(one["samples_ms"], processes_of(one)) for one in (before, after)]
    found = compare(a, b, threshold, confidence, processes_a=sizes_a, processes_b=sizes_b)
    why = "the interval reaches across the threshold; more samples may tell" if found.answer == CANT_TELL else None
    return Told(found.answer, found.ratio, found.low, found.high, why, known is not None)


def _unlike(before: Record, after: Record) -> str | None:
    was, now = before["threads"], after["threads"]
    return f"{plural(was, 'thread')} before and {now} after" if was and now and was != now else None


def _unfit(record: Record, when: str) -> str | None:
    """Why nothing can be concluded from this record, whatever the other one says."""
    samples = record["samples_ms"]
    if samples is None:
        return f"no samples {when}: its results file is of version {record['schema_version']}"
    if len(samples) < FEWEST_SAMPLES:
        return f"{plural(len(samples), 'sample')} {when}, and {FEWEST_SAMPLES} are the fewest that tell anything"
    if (record["clocks"] or {}).get("throttled"):
        return f"the GPU held itself back (throttled) {when}"
    return None


def _disturbed(record: Record, when: str, threshold: float) -> str | None:
    """On a busy machine all samples of a run may be slow alike, which no interval shows; but the system knows how long
    the threads waited for a core, and a difference that is smaller than that may be nothing else."""
    if (record["waited"] or 0) <= threshold:
        return None
    advice = "; of one thread (--threads=1) waits are known, and taken off" if record["threads"] != 1 else ""
    return f"the machine was busy {when}: threads waited for a core for {percent(record['waited'])} of the time{advice}"
