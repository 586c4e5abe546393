"""The two sides of a block size: small blocks waste little memory, large ones are read fast; multiplied by a model.

A step of decoding computes one token of each of R running sequences and takes ``W + R * a``: ``a`` is attention, which
each sequence adds to, and ``W`` the rest, mostly weights, which are read once a step however many sequences run. So a
device makes ``R / (W + R * a)`` tokens a second, and the block size has a hand in both: ``R`` comes from the replay,
where it holds what is wasted and what prefix hits save, and ``a`` from the benchmark, at its context. Not in it:
prefill, preempted work, and the allocator's own time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvproof_reports.capacity import Capacity
from kvproof_reports.curves import Chart, Curve
from kvproof_reports.rates import Estimate, time_ms

NUM_LAYERS = 32
"""Of a model that a run does not name; as many launches of attention a step."""

SHARES = (0.25, 0.5, 0.75)
"""Of a step that attention takes, at the measured batch and REFERENCE tokens a block, with the fastest kernel: the mix
of model, GPU and context in one figure. It sets ``W``."""

USUAL_SHARE = 0.5

REFERENCE = 16

MODEL = (
    "tokens/s = R / (W + R · a). R: sequences at a time in the replay, which holds waste and prefix hits. "
    "a: attention of one sequence in one step, the measured launch over its batch, once for each layer of the "
    f"run's model, or {NUM_LAYERS} where it was given none. "
    "W: the rest of a step, read once for all sequences; it is what leaves attention the chosen share of a step at the "
    f"measured batch, with the fastest kernel and blocks of {REFERENCE}. "
    "Left out: prefill, preempted work, the allocator's time. Block sizes were timed one after the other, so that an "
    "interval does not hold what the machine did in between. A star marks the best block size."
)


@dataclass(frozen=True)
class Sides:
    """One kernel and one allocator over the block sizes that both were measured at."""

    kernel: str
    allocator: str
    workload: str
    table: str
    traffic: str
    share: float
    kernel_us: Mapping[int, Estimate]
    """Attention of one token in one layer, µs."""
    running: Mapping[int, float]
    """Sequences at a time."""
    tokens_per_second: Mapping[int, Estimate]

    @property
    def best(self) -> int:
        """The block size with the highest median."""
        return max(self.tokens_per_second, key=lambda size: self.tokens_per_second[size].value)

    @property
    def alike(self) -> list[int]:
        """Other block sizes whose interval reaches into that of the best: they can't be told from it."""
        low = self.tokens_per_second[self.best].low
        return [size for size, found in self.tokens_per_second.items() if size != self.best and found.high >= low]


def two_sides(charts: Sequence[Chart], found: Sequence[Capacity]) -> list[Sides]:
    """Every verified decode kernel with every allocator: at the usual state of the block table, as it was timed first
    (with a cold cache, eagerly). Where the two share fewer than two block sizes there is nothing to choose."""
    sides = []
    for chart in {chart.workload: chart for chart in reversed(charts)}.values():
        curves = [curve for curve in chart.curves if curve.table == chart.usual_table]
        launches = {curve.label: times for curve in curves if (times := _launch_ms(curve))}
        for label, launch_ms in launches.items():
            for capacity in found:
                sizes = [size for size in launch_ms if size in capacity.points and _runs(capacity, size)]
                if len(sizes) > 1:
                    shared = {size: launch_ms[size] for size in sizes}
                    reference = _reference_ms(list(launches.values()))
                    sides += [_sides(chart, label, capacity, shared, reference, share) for share in SHARES]
    return sides


def best_sizes(sides: Sequence[Sides]) -> list[Sides]:
    """For each traffic the fastest pair, at the first workload and with attention's usual share of a step."""
    usual = [one for one in sides if one.share == USUAL_SHARE and one.workload == sides[0].workload]
    traffics = dict.fromkeys(one.traffic for one in usual)
    return [max((s for s in usual if s.traffic == name), key=_highest) for name in traffics]


def _highest(sides: Sides) -> float:
    return sides.tokens_per_second[sides.best].value


def _runs(capacity: Capacity, size: int) -> bool:
    return bool(capacity.points[size]["mean_running"])


def _batch(chart: Chart) -> int:
    return int(next(record for curve in chart.curves for record in curve.points.values())["batch"])


def _num_layers(chart: Chart) -> int:
    named = [record["num_layers"] for curve in chart.curves for record in curve.points.values()]
    return int(next(filter(None, named), NUM_LAYERS))


def _launch_ms(curve: Curve) -> dict[int, Estimate]:
    """Of verified rows of decoding: only there each sequence adds one token."""
    decode = {s: r for s, r in curve.points.items() if r["verified"] and r["group"] == "decode" and r["batch"]}
    return {size: time for size, record in decode.items() if (time := time_ms(record)) is not None}


def _reference_ms(launches: Sequence[Mapping[int, Estimate]]) -> float:
    """Of the fastest kernel at REFERENCE, or at the smallest block size where nothing was timed at that."""
    sizes = {size for times in launches for size in times}
    size = REFERENCE if REFERENCE in sizes else min(sizes)
    return min(times[size].value for times in launches if size in times)


def _sides(
    chart: Chart,
    label: str,
    capacity: Capacity,
    launch_ms: Mapping[int, Estimate],
    reference_ms: float,
    share: float,
) -> Sides:
    batch, num_layers = _batch(chart), _num_layers(chart)
    rest_ms = num_layers * reference_ms * (1 - share) / share
    running = {size: float(capacity.points[size]["mean_running"]) for size in launch_ms}
    step_ms = {size: launch.scaled(num_layers) for size, launch in launch_ms.items()}
    rates = {size: _rate(running[size], rest_ms, attention, batch) for size, attention in step_ms.items()}
    kernel_us = {size: launch.scaled(1e3 / batch) for size, launch in launch_ms.items()}
    return Sides(
        label, capacity.label, chart.workload, chart.usual_table, capacity.traffic, share, kernel_us, running, rates
    )


def _rate(running: float, rest_ms: float, attention: Estimate, batch: int) -> Estimate:
    """Tokens a second. It falls as attention takes longer, so that the interval's ends are those of its launches."""

    def at(attention_ms: float) -> float:
        return 1e3 * running / (rest_ms + running * attention_ms / batch)

    return Estimate(at(attention.value), at(attention.high), at(attention.low), attention.kind)
