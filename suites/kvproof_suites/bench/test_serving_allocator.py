"""Cost of an allocator in a serving engine: 256 sequences decode while 1,500 requests come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof_suites.bench.bookkeeping import bytes_per_block
from kvproof_suites.bench.rows import SWITCHED_OFF
from kvproof_suites.bench.serving_figures import Figures, repeat, summarize, warm_up
from kvproof_suites.bench.serving_loop import NotServed
from kvproof_suites.bench.serving_workload import BLOCK_SIZE, MOST_RUNNING, draw, draw_stable
from kvproof_suites.bench.standing import Standing
from kvproof_suites.bench.timing import Timing
from kvproof_suites.outcome import not_run_here
from kvproof_suites.under_test import MakeAllocator

NUM_REPEATS = 3


def test_serving(
    make_allocator: MakeAllocator,
    share: float,
    seed: int,
    standings: Callable[[str, str], Standing],
    benchmark: Any,
    record: Callable[..., None],
) -> None:
    workload, stable = draw(share, seed=seed), draw_stable()
    row: dict[str, Any] = {"group": "allocator", "implementation": make_allocator.name, "device": "cpu"}
    row |= {"operation": f"serve, {workload.name}", "block_size": BLOCK_SIZE, "batch": MOST_RUNNING}
    benchmark.group = "allocator, serving"
    benchmark.extra_info.update(row)
    stands = standings(make_allocator.name, "allocator")
    if (reason := SWITCHED_OFF if not benchmark.enabled else stands.reason if stands.broken else None) is not None:
        record("benchmark", **row, timed=False, reason=reason, verified=stands.verified)
        not_run_here(reason)
    repeats: list[Figures] = []

    def serve() -> None:
        repeats.append(repeat(make_allocator, [workload], stable)[workload.name])

    try:
        warm_up(make_allocator)
        benchmark.pedantic(serve, rounds=NUM_REPEATS)
    except NotServed as error:
        record("benchmark", **row, timed=False, reason=str(error), verified=stands.verified)
        not_run_here(str(error))
    figures = summarize(repeats)
    figures["bytes_per_block"], figures["bytes_found_by"] = bytes_per_block(make_allocator, BLOCK_SIZE)
    benchmark.extra_info.update(figures)
    told = {"timed": True, "verified": stands.verified, "reason": stands.reason}
    record("benchmark", **row, **told, **figures, **step_times(repeats))


def step_times(repeats: list[Figures]) -> dict[str, Any]:
    """A decode step with its tensors as the operation of the row; a repeat gives one sample, its median step."""
    return Timing(tuple(figures["us_per_step"] / 1e6 for figures in repeats)).fields()
