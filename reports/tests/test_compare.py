"""Benchmarks side by side: only the same work is compared."""

import re

import pytest

from kvproof_reports.compare import compare_implementations, compare_runs
from kvproof_reports.records import read_run
from kvproof_reports.run_tables import comparison_table
from kvproof_reports.samples import sample_fields
from kvproof_reports.statistics import CANT_TELL, FASTER, SLOWER

SAMPLES = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 2.03, 1.97]


def runs_of(*builders):
    return [read_run(builder.writer.folder) for builder in builders]


def test_two_runs_of_one_implementation_meet_in_one_row(build):
    before, after = build("before"), build("after")
    before.decode("torch", median_ms=2.0)
    after.decode("torch", median_ms=1.5)

    comparison = compare_runs(runs_of(before, after))

    assert comparison.columns == ["before", "after"]
    (row,) = comparison.rows
    assert row.workload["implementation"] == "torch"
    assert row.median_ms == {"before": 2.0, "after": 1.5}
    assert row.ratio == {"before": 1.0, "after": 0.75}


@pytest.mark.parametrize("change", [{"block_size": 32}, {"table": "churned"}, {"dtype": "bfloat16"}, {"batch": 8}])
def test_another_shape_is_another_row_and_has_no_ratio(build, change):
    before, after = build("before"), build("after")
    before.decode("torch")
    after.decode("torch", **change)

    first, second = compare_runs(runs_of(before, after)).rows

    assert first.ratio == {"before": 1.0}
    assert second.ratio == {}


def test_implementations_of_one_run_meet_in_one_row(build):
    run = build("a")
    run.decode("torch", median_ms=2.0)
    run.decode("other", median_ms=3.0)

    (row,) = compare_implementations(runs_of(run)).rows

    assert row.ratio == {"torch": 1.0, "other": 1.5}
    assert "implementation" not in row.workload


def test_a_row_without_figures_is_not_compared(build):
    run = build("a")
    run.untimed()

    assert compare_runs(runs_of(run)).rows == []


def sampled(run, factor=1.0, **changes):
    return run.decode(**{**sample_fields([factor * one for one in SAMPLES]), **changes})


@pytest.mark.parametrize(("factor", "answer"), [(1.1, SLOWER), (0.9, FASTER), (1.03, CANT_TELL)])
def test_each_row_is_answered_from_the_samples_of_both(build, factor, answer):
    before, after = build("before"), build("after")
    sampled(before)
    sampled(after, factor)

    (row,) = compare_runs(runs_of(before, after)).rows

    told = row.answers()["after"]
    assert (list(row.answers()), told.answer) == (["after"], answer)
    assert told.low < told.ratio < told.high
    assert (told.why is not None) == (answer == CANT_TELL)


def test_a_larger_threshold_and_a_higher_confidence_answer_with_more_care(build):
    before, after = build("before"), build("after")
    sampled(before)
    sampled(after, 1.05)

    (row,) = compare_runs(runs_of(before, after)).rows

    assert row.answers(threshold=0.03)["after"].answer == SLOWER
    assert row.answers(threshold=0.05)["after"].answer == CANT_TELL
    assert row.answers(confidence=0.5)["after"].high < row.answers(confidence=0.99)["after"].high


THROTTLED = {"sm_mhz": 900, "throttled": True}


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"samples_ms": None}, {}, "no samples before"),
        ({}, {"samples_ms": [2.0] * 5}, "5 samples after, and 6 are the fewest that tell anything"),
        ({"waited": 0.2}, {}, "the machine was busy before: threads waited for a core for 20.0 % of the time"),
        ({}, {"clocks": THROTTLED}, r"the GPU held itself back \(throttled\) after"),
    ],
)
def test_what_can_not_be_told_says_why_and_has_no_interval(build, first, second, why):
    before, after = build("before"), build("after")
    sampled(before, **first)
    sampled(after, 1.5, **second)

    (row,) = compare_runs(runs_of(before, after)).rows

    told = row.answers()["after"]
    assert (told.answer, told.interval) == (CANT_TELL, "")
    assert re.match(why, told.why)


STEADY = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 2.03, 1.97, 2.0, 2.0]


def one_thread(run, factor, waited_ms):
    core = [factor * sample for sample in STEADY]
    elapsed = [one + wait for one, wait in zip(core, [0.0] * 6 + [waited_ms] * 4, strict=True)]
    run.decode(**{**sample_fields(elapsed, core_ms=core), "threads": 1, "waited": 0.6})


@pytest.mark.parametrize(("factor", "answer"), [(1.1, SLOWER), (1.0, "same")])
def test_what_one_thread_waited_for_a_core_makes_it_neither_slower_nor_unfit(build, factor, answer):
    before, after = build("before"), build("after")
    one_thread(before, 1.0, waited_ms=5.0)
    one_thread(after, factor, waited_ms=0.5)

    (row,) = compare_runs(runs_of(before, after)).rows

    told = row.answers()["after"]
    assert (told.answer, told.less_waits) == (answer, True)
    assert told.ratio == pytest.approx(factor)


def test_the_table_of_runs_shows_the_ratio_that_the_interval_is_of(build):
    before, after = build("before"), build("after")
    before.decode(**sample_fields([sample + 2.0 for sample in STEADY], core_ms=STEADY), threads=1)
    after.decode(**sample_fields(STEADY, core_ms=STEADY), threads=1)

    (row,) = comparison_table(compare_runs(runs_of(before, after))).rows

    low, high = map(float, row["interval_1"].split(" to "))
    assert low <= row["ratio_1"] <= high


def test_waits_that_one_side_does_not_know_are_judged_as_they_always_were(build):
    before, after = build("before"), build("after")
    one_thread(before, 1.0, waited_ms=5.0)
    sampled(after, 1.5, waited=0.0)

    (row,) = compare_runs(runs_of(before, after)).rows

    told = row.answers()["after"]
    assert (told.answer, told.less_waits) == (CANT_TELL, False)
    assert told.why == "the machine was busy before: threads waited for a core for 60.0 % of the time"


def test_of_several_threads_on_a_busy_machine_one_is_advised(build):
    before, after = build("before"), build("after")
    sampled(before, waited=0.2, threads=2)
    sampled(after)

    (row,) = compare_runs(runs_of(before, after)).rows

    assert row.answers()["after"].why.endswith("; of one thread (--threads=1) waits are known, and taken off")


def test_launches_on_other_numbers_of_threads_are_not_compared(build):
    before, after = build("before"), build("after")
    sampled(before, threads=1)
    sampled(after, threads=2)

    (row,) = compare_runs(runs_of(before, after)).rows

    assert (row.answers()["after"].answer, row.answers()["after"].why) == (CANT_TELL, "1 thread before and 2 after")


def test_a_machine_that_was_hardly_busy_is_fit(build):
    before, after = build("before"), build("after")
    sampled(before, waited=0.02)
    sampled(after, 1.5, waited=0.02)

    (row,) = compare_runs(runs_of(before, after)).rows

    assert row.answers()["after"].answer == SLOWER


def test_a_row_that_the_first_run_lacks_has_no_answer(build):
    before, after = build("before"), build("after")
    sampled(before)
    sampled(after, block_size=32)

    assert [row.answers() for row in compare_runs(runs_of(before, after)).rows] == [{}, {}]
