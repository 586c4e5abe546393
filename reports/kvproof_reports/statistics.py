"""Whether one set of timings is faster than another: an interval from resampling, never two figures side by side.

The statistic is the median, which a few disturbed samples don't move. How far it may be from the truth is found by the
bootstrap: draw samples anew from those that there are, and see how far the median wanders. Two things make timings
unlike the independent draws that the plain bootstrap takes them for, and are resampled as they are:

- neighbours in time share a disturbance, so that blocks of neighbours are drawn (the moving-block bootstrap, Künsch
  1989);
- each process has a memory layout and a moment of its own, so that processes are drawn first (Kalibera and Jones,
  "Rigorous benchmarking in reasonable time", 2013). With samples of one process this spread can't be seen, and an
  interval speaks for that process only.

Of a handful of processes a bootstrap can't draw what none of them showed: of three and one its 95 % interval holds the
truth in two of three cases (test_processes). So where two sets hold three processes or more, the interval of their
ratio is at least as wide as Student's, from one figure for each process: the logarithm of its median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from kvproof_reports.student import half_width

if TYPE_CHECKING:  # and in the functions that need it: whoever only reads results does without
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

THRESHOLD = 0.03
"""A difference below this share is of no practical importance."""

CONFIDENCE = 0.95

FEWEST_SAMPLES = 6
"""Between the smallest and the largest of n samples lies the median with probability 1 - 2^(1 - n): 97 % for 6, and too
little for a 95 % interval for 5."""

RESAMPLES = 10_000
LARGEST_LOG = 700.0
"""Of a ratio that a double can hold."""

FASTER, SAME, SLOWER, CANT_TELL = "faster", "same", "slower", "can't tell"


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Answer:
    """What samples ``b`` are, seen from samples ``a``."""

    answer: str
    """FASTER, SAME, SLOWER or CANT_TELL"""
    ratio: float
    """Median of b over median of a; above 1 is slower."""
    low: float
    high: float
    """Interval of the ratio; 0 and infinity when there are too few samples for one."""


def interval(
    samples: Sequence[float], confidence: float = CONFIDENCE, *, processes: Sequence[int] | None = None
) -> Interval:
    """Bootstrap interval of the median, in the unit of the samples. The same samples give the same interval.

    Args:
        samples: in the order in which they were taken.
        processes: how many of them each process gave, in order; without it, one gave all.

    Raises:
        ValueError: fewer than FEWEST_SAMPLES samples, one that is no positive number, or counts that don't add up.
    """
    return _interval(_medians(_checked(samples, processes), processes, seed=0), confidence)


def compare(
    samples_a: Sequence[float],
    samples_b: Sequence[float],
    threshold: float = THRESHOLD,
    confidence: float = CONFIDENCE,
    *,
    processes_a: Sequence[int] | None = None,
    processes_b: Sequence[int] | None = None,
) -> Answer:
    """What b is, seen from a: SLOWER when the whole interval of the ratio of medians lies above 1 + threshold, FASTER
    when it lies below 1 / (1 + threshold), SAME when it lies between the two, CANT_TELL otherwise.

    Raises:
        ValueError: as ``interval``; but few samples are CANT_TELL.
    """
    import numpy as np

    a, b = _checked(samples_a, processes_a, fewest=1), _checked(samples_b, processes_b, fewest=1)
    ratio = float(np.median(b) / np.median(a))
    if min(len(a), len(b)) < FEWEST_SAMPLES:
        return Answer(CANT_TELL, ratio, 0.0, math.inf)
    found = _interval(_medians(b, processes_b, seed=1) / _medians(a, processes_a, seed=0), confidence)
    one_each = (_median_logs(a, processes_a), _median_logs(b, processes_b))
    if sum(map(len, one_each)) > 2:
        found = _wider(found, _between_processes(*one_each, confidence))
    return Answer(_word(found, threshold), ratio, found.low, found.high)


def _word(found: Interval, threshold: float) -> str:
    slowest_same, fastest_same = 1 + threshold, 1 / (1 + threshold)
    if found.low > slowest_same:
        return SLOWER
    if found.high < fastest_same:
        return FASTER
    return SAME if fastest_same <= found.low and found.high <= slowest_same else CANT_TELL


def _median_logs(samples: Floats, processes: Sequence[int] | None) -> list[float]:
    """Of each process."""
    import numpy as np

    ends = accumulate(processes or [len(samples)])
    starts = [0, *accumulate(processes or [])]
    return [float(np.log(np.median(samples[start:end]))) for start, end in zip(starts, ends, strict=False)]


def _between_processes(a: Sequence[float], b: Sequence[float], confidence: float) -> Interval:
    middle, width = sum(b) / len(b) - sum(a) / len(a), half_width(a, b, confidence)
    return Interval(math.exp(min(middle - width, LARGEST_LOG)), math.exp(min(middle + width, LARGEST_LOG)))


def _wider(one: Interval, other: Interval) -> Interval:
    return Interval(min(one.low, other.low), max(one.high, other.high))


def _interval(drawn: Floats, confidence: float) -> Interval:
    import numpy as np

    outside = (1 - confidence) / 2
    low, high = np.quantile(drawn, [outside, 1 - outside])
    return Interval(float(low), float(high))


def _medians(samples: Floats, processes: Sequence[int] | None, seed: int) -> Floats:
    """Medians of RESAMPLES draws: processes with replacement, in each of them blocks of neighbours, as in a ring."""
    import numpy as np

    random = np.random.default_rng(seed)
    sizes = np.array(processes or [len(samples)])
    starts = np.cumsum(sizes) - sizes
    per_process = max(1, round(len(samples) / len(sizes)))
    block = round(per_process ** (1 / 3))
    num_blocks = -(-per_process // block)
    chosen = random.integers(len(sizes), size=(RESAMPLES, len(sizes), 1))
    first = random.integers(sizes[chosen], size=(RESAMPLES, len(sizes), num_blocks))
    within = (first[..., None] + np.arange(block)) % sizes[chosen][..., None]
    index = (starts[chosen][..., None] + within).reshape(RESAMPLES, len(sizes), -1)[..., :per_process]
    medians: Floats = np.median(samples[index.reshape(RESAMPLES, -1)], axis=1)
    return medians


def _checked(samples: Sequence[float], processes: Sequence[int] | None, fewest: int = FEWEST_SAMPLES) -> Floats:
    import numpy as np

    found = np.asarray(samples, dtype=np.float64)
    if found.ndim != 1 or len(found) < fewest:
        raise ValueError(f"samples: shape {found.shape}; a median needs {fewest} samples or more in a row")
    if not (np.isfinite(found) & (found > 0)).all():
        raise ValueError("samples: times must be positive and finite")
    if processes is not None and (sum(processes) != len(found) or min(processes) < 1):
        raise ValueError(f"processes: {list(processes)} must be counts that add up to the {len(found)} samples")
    return found
