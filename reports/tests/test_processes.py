"""Timings of several processes: an interval holds the truth as often as it says, however few of them there are, and a
gate that looks several times is wrong no more often than one that looks once."""

import math

import numpy as np
import pytest

from kvproof_reports import statistics
from kvproof_reports.gate import share_of_look
from kvproof_reports.statistics import SLOWER, THRESHOLD, compare
from kvproof_reports.student import half_width

TRIES = 300
BETWEEN, WITHIN, NUM_SAMPLES = 0.03, 0.03, 20
"""Spread of the medians of processes, of the samples of one, and how many each gives."""


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 400)


def processes(random, number, ratio=1.0, between=BETWEEN):
    """Samples of so many processes, each with a level of its own."""
    levels = ratio * np.exp(between * random.normal(size=(number, 1)))
    return (levels * np.exp(WITHIN * random.normal(size=(number, NUM_SAMPLES)))).ravel()


def compared(random, before, after, ratio, between=BETWEEN):
    a, b = processes(random, before, 1.0, between), processes(random, after, ratio, between)
    return compare(a, b, processes_a=[NUM_SAMPLES] * before, processes_b=[NUM_SAMPLES] * after)


def held(before, after):
    random = np.random.default_rng(11)
    found = [compared(random, before, after, 1.05) for _ in range(TRIES)]
    return sum(one.low <= 1.05 <= one.high for one in found) / TRIES


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 1), (3, 2), (5, 1), (5, 3)])
def test_the_interval_of_the_ratio_holds_the_truth_as_often_as_it_says(before, after):
    assert held(before, after) >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / TRIES)


def test_resampling_alone_would_not(monkeypatch):
    monkeypatch.setattr(statistics, "_wider", lambda one, other: one)
    assert held(3, 1) < 0.7


def test_a_slowdown_of_ten_percent_is_found_once_there_are_processes_enough():
    random = np.random.default_rng(11)
    assert sum(compared(random, 5, 6, 1.1, 0.02).answer == SLOWER for _ in range(TRIES)) >= 0.95 * TRIES


def test_one_process_each_is_judged_by_its_samples_alone():
    steady = [1.0, 1.001, 0.999, 1.002, 0.998] * 4
    told = compare(steady, [1.1 * sample for sample in steady])
    assert told.answer == SLOWER
    assert told.high - told.low < 0.01


def test_processes_that_agree_to_the_last_digit_have_a_ratio_without_a_width():
    told = compare([1.0] * 12, [2.0] * 6, processes_a=[6, 6])
    assert (told.low, told.high) == pytest.approx((2.0, 2.0))


def test_levels_that_are_far_apart_leave_the_ratio_open_and_finite():
    told = compare([1e-3] * 6 + [1e3] * 6, [1.0] * 6, processes_a=[6, 6], confidence=0.999)
    assert told.low < 1e-6
    assert 1e6 < told.high < math.inf


def falsely_slower(num_looks, share):
    """How often a gate says slower of what is exactly as slow as the threshold allows, in any of its looks."""
    random, tries, wrong = np.random.default_rng(2), 2000, 0
    for _ in range(tries):
        before, after = random.normal(size=5), math.log(1 + THRESHOLD) + random.normal(size=num_looks)
        for look in range(1, num_looks + 1):
            seen = after[:look]
            low = seen.mean() - before.mean() - half_width(before, seen, 1 - 0.05 * share(look, num_looks))
            if low > math.log(1 + THRESHOLD):
                wrong += 1
                break
    return wrong / tries


@pytest.mark.parametrize("num_looks", [1, 2, 4, 6, 21])
def test_however_often_a_gate_looks_it_is_wrong_no_more_often_than_its_confidence_says(num_looks):
    assert falsely_slower(num_looks, share_of_look) <= 0.05
    assert sum(share_of_look(look, num_looks) for look in range(1, num_looks + 1)) <= 2.0 + 1e-9


def test_a_gate_that_takes_every_look_for_its_only_one_is_wrong_more_often():
    assert falsely_slower(6, lambda look, num_looks: 1.0) > 0.06
