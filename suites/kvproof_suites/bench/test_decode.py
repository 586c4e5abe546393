"""Decode throughput against block size and state of the block table, and the tax of paging: paged against dense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvproof_suites.bench.decode_step import Shape, default_shape, draw, paged_step, require_dense_result
from kvproof_suites.bench.tables import STATES, Churned
from kvproof_suites.bench.timing import Timing, measure, median_seconds, roof
from kvproof_suites.bench.untimed import compiled_resources, why_not_timed
from kvproof_suites.outcome import not_run_here
from kvproof_suites.under_test import KernelUnderTest

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
SWITCHED_OFF = "pytest-benchmark is switched off in this run, as it is under pytest-xdist: run it in one process"


@pytest.mark.parametrize("table", STATES)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_decode_throughput(
    kernel: KernelUnderTest,
    block_size: int,
    table: str,
    churned_tables: Churned,
    seed: int,
    benchmark: Any,
    record: Callable[..., None],
) -> None:
    shape = default_shape(kernel.device)
    row = {"group": "decode", "implementation": kernel.name, "block_size": block_size, "table": table}
    row |= {**shape.fields(), "device": kernel.device}
    benchmark.group = f"decode, {kernel.name}"
    benchmark.extra_info.update(row)
    if (reason := why_not_timed(kernel, shape, block_size, table)) is not None:
        resources = compiled_resources(kernel, shape.spec(block_size))
        record("benchmark", **row, timed=False, reason=reason, verified=False, resources=resources)
        not_run_here(reason)
    run = run_dense if table == "dense" else run_paged
    timing, more = run(kernel, shape, block_size, table, churned_tables, seed, benchmark)
    if timing is None:
        record("benchmark", **row, timed=False, reason=SWITCHED_OFF, verified=True)
        not_run_here(SWITCHED_OFF)
    figures = {**timing.fields(), **rates(shape, None if table == "dense" else block_size, timing, kernel.device)}
    benchmark.extra_info.update(figures)
    record("benchmark", **row, timed=True, verified=True, **figures, **more)


def run_paged(
    kernel: KernelUnderTest,
    shape: Shape,
    block_size: int,
    table: str,
    churned_tables: Churned,
    seed: int,
    benchmark: Any,
) -> tuple[Timing | None, Mapping[str, Any]]:
    step = paged_step(kernel, shape, block_size, table, churned_tables, seed)
    require_dense_result(kernel, shape, block_size, seed, [step.run(turn) for turn in step.turns])
    plan_seconds = median_seconds(step.plan, kernel.device)
    timing = measure(benchmark, step.run, step.turns, kernel.device)
    return timing, {"plan_ms": 1e3 * plan_seconds}


def run_dense(
    kernel: KernelUnderTest,
    shape: Shape,
    block_size: int,
    table: str,
    churned_tables: Churned,
    seed: int,
    benchmark: Any,
) -> tuple[Timing | None, Mapping[str, Any]]:
    """The kernel's own family without a table, on each sequence's contiguous keys and values."""
    turns = draw(shape, kernel.device, seed).turns(shape.batch)
    spec, attend = shape.spec(block_size), kernel.kernel.dense  # type: ignore[attr-defined]
    require_dense_result(kernel, shape, block_size, seed, [attend(spec, *turn) for turn in turns])
    return measure(benchmark, lambda turn: attend(spec, *turn), turns, kernel.device), {}


def rates(shape: Shape, block_size: int | None, timing: Timing, device: str) -> dict[str, float]:
    """Decimal units; the roof is what one pass over memory reaches in this very process."""
    gb_per_second = shape.moved_bytes(block_size) / timing.median_seconds / 1e9
    ceiling = roof(device).read_gb_per_second
    return {
        "tokens_per_second": shape.batch / timing.median_seconds,
        "gb_per_second": gb_per_second,
        "roof_gb_per_second": ceiling,
        "share_of_roof": gb_per_second / ceiling,
    }
