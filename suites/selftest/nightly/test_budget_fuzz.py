"""The error budget never alarms at a right kernel: 20,000 runs in the nightly tier, the first 200 every day."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from selftest.nightly.drawn_runs import (
    LONGEST,
    SCORES,
    VALUES,
    Run,
    draw_run,
    ratios,
    with_own_scales,
    with_partials,
)

NIGHTLY = bool(os.environ.get("KVPROOF_NIGHTLY"))
NUM_RUNS = int(os.environ.get("KVPROOF_FUZZ_RUNS", 20_000)) if NIGHTLY else 200
A_TEST = 500


@pytest.mark.parametrize("first", range(0, NUM_RUNS, A_TEST))
def test_a_right_kernel_raises_no_alarm(first: int) -> None:
    runs = [draw_run(number) for number in range(first, min(first + A_TEST, NUM_RUNS))]
    found = {run: ratios(run) for run in runs}
    alarms = {run: pair for run, pair in found.items() if max(pair) > 1}
    worst = max(found, key=lambda run: found[run][0])
    print(f"{len(runs)} runs, largest error ÷ bound {found[worst][0]:.3f} of the output in {worst}")
    print(f"of the LSE {max(pair[1] for pair in found.values()):.3f}; {len(alarms)} alarms")
    assert not alarms, "\n".join(f"{run}: {pair}" for run, pair in alarms.items())


@pytest.mark.parametrize("first", range(0, NUM_RUNS // 4, A_TEST))
def test_a_right_kernel_whose_weights_take_scales_raises_no_alarm(first: int) -> None:
    runs = [with_own_scales(number) for number in range(first, min(first + A_TEST, NUM_RUNS // 4))]
    found = {run: ratios(run) for run in runs}
    alarms = {run: pair for run, pair in found.items() if max(pair) > 1}
    print(f"{len(runs)} runs, largest error ÷ bound {max(pair[0] for pair in found.values()):.3f} of the output")
    assert not alarms, "\n".join(f"{run}: {pair}" for run, pair in alarms.items())


def test_weights_that_take_scales_in_silence_raise_alarms() -> None:
    """In float16 a weight times a small scale is below the normal range, where what is lost counts the code."""
    runs = [run for run in map(with_own_scales, range(200)) if run.declared.p == "float16" and run.context > 1]
    silent = [replace(run, declared=replace(run.declared, weights_take_scale=False)) for run in runs]
    alarms = sum(ratios(bare, run.declared)[0] > 1 for bare, run in zip(silent, runs, strict=True))
    assert alarms > len(runs) / 4, f"{alarms} of {len(runs)}"


def test_the_runs_reach_every_form_that_the_budget_knows() -> None:
    runs = [draw_run(number) for number in range(200)]
    assert {run.dtype for run in runs} == {"float16", "bfloat16", "float32"}
    assert {run.scores for run in runs} == set(SCORES)
    assert {run.values for run in runs} == set(VALUES)
    assert any(run.declared.tf32 for run in runs)
    assert any(run.declared.prescaled_q for run in runs)
    assert any(run.declared.rounded_sum for run in runs)
    assert any(run.declared.partials != "float32" for run in runs)
    assert min(run.context for run in runs) == 1
    assert max(run.context for run in (draw_run(number) for number in range(5000))) == LONGEST


def test_run_by_number_is_always_the_same_run() -> None:
    assert draw_run(17) == draw_run(17)
    assert draw_run(17) != draw_run(18)
    assert ratios(draw_run(17)) == ratios(draw_run(17))


def test_a_sum_of_equal_terms_is_outside_of_what_the_budget_promises() -> None:
    """SPEC.md says so. When this fails the budget has learnt of it, and the fuzz can have these runs as well."""
    run = replace(draw_run(19028), scores="all but one", values="constant")
    assert ratios(run)[0] > 1


def undeclared(run: Run) -> list[Run]:
    return [replace(run, declared=replace(run.declared, tf32=False))] if run.declared.tf32 else []


def test_rounding_that_is_not_declared_raises_alarms() -> None:
    """The bound is narrow enough to see arithmetic that differs from the declaration."""
    wide = [draw_run(number) for number in range(120)]
    tf32 = [run for run in wide if run.declared.tf32 and run.context > 1]
    assert sum(max(ratios(bare, run.declared)) > 1 for run in tf32 for bare in undeclared(run)) > len(tf32) / 2
    half = [with_partials(run, "float32", 8) for run in wide if run.dtype == "float32" and run.context > 64]
    actual = [replace(run.declared, partials="bfloat16") for run in half]
    assert sum(ratios(run, what)[0] > 1 for run, what in zip(half, actual, strict=True)) > len(half) / 2
