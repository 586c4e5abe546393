"""Faster, same, slower or can't tell: how often each is said of timings of which the truth is known."""

from collections import Counter

import numpy as np
import pytest

from kvproof_reports import statistics
from kvproof_reports.statistics import CANT_TELL, FASTER, SAME, SLOWER, compare, interval

TRIES = 200
NOISE = {20: 0.03, 50: 0.04}
"""Number of samples, and the spread of timings (of a launch of 4 ms on a machine that does other things as well) up to
which it finds a slowdown of 10 %."""


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)


def timings(random, number, spread):
    """Lognormal, each with half the disturbance of its neighbour, and one in ten held up for long."""
    fresh = random.normal(size=number)
    shared = np.empty(number)
    shared[0] = fresh[0]
    for i in range(1, number):
        shared[i] = 0.5 * shared[i - 1] + np.sqrt(0.75) * fresh[i]
    held_up = np.where(random.random(number) < 0.1, 1 + random.exponential(0.5, number), 1)
    return np.exp(spread * shared) * held_up


def answers(number, spread, slowdown):
    random = np.random.default_rng(7)
    pairs = ((timings(random, number, spread), slowdown * timings(random, number, spread)) for _ in range(TRIES))
    return Counter(compare(before, after).answer for before, after in pairs)


@pytest.mark.parametrize("number", NOISE)
@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1])
def test_equal_timings_are_hardly_ever_called_slower_or_faster(number, spread):
    found = answers(number, spread, 1.0)
    assert found[SLOWER] < 0.05 * TRIES
    assert found[FASTER] < 0.05 * TRIES


@pytest.mark.parametrize("number", NOISE)
def test_a_slowdown_of_ten_percent_is_found(number):
    assert answers(number, NOISE[number], 1.1)[SLOWER] >= 0.95 * TRIES


def test_equal_timings_with_little_noise_are_called_the_same():
    assert answers(50, 0.02, 1.0)[SAME] >= 0.9 * TRIES


def test_an_interval_holds_the_true_median_as_often_as_it_says():
    random = np.random.default_rng(3)
    drawn = [interval(np.exp(0.1 * random.normal(size=30))) for _ in range(TRIES)]
    assert sum(found.low <= 1 <= found.high for found in drawn) >= 0.9 * TRIES  # 95 % less four standard errors


@pytest.mark.parametrize(
    ("after", "answer"), [(1.0, SAME), (1.02, SAME), (1.05, SLOWER), (0.95, FASTER), (0.98, SAME), (1.03, CANT_TELL)]
)
def test_the_threshold_decides_what_matters(after, answer):
    steady = [1.0, 1.001, 0.999, 1.002, 0.998] * 4
    assert compare(steady, [after * sample for sample in steady]).answer == answer


def test_swapping_the_two_swaps_faster_and_slower():
    fast, slow = [1.0, 1.01, 0.99] * 5, [1.2, 1.21, 1.19] * 5
    one, other = compare(fast, slow), compare(slow, fast)
    assert (one.answer, other.answer) == (SLOWER, FASTER)
    assert one.ratio == pytest.approx(1 / other.ratio)


def test_the_same_samples_always_give_the_same_answer():
    before, after = timings(np.random.default_rng(1), 20, 0.05), timings(np.random.default_rng(2), 20, 0.05)
    assert compare(before, after) == compare(before, after)
    assert interval(before) == interval(before)


def test_processes_that_differ_widen_the_interval_and_more_samples_of_each_do_not_narrow_it():
    steady = np.array([1.0, 1.001, 0.999] * 20)
    samples = np.concatenate([steady, 1.2 * steady, 1.1 * steady])
    blind, seeing = interval(samples), interval(samples, processes=[60, 60, 60])
    assert seeing.high - seeing.low > 0.15
    assert compare(samples, 1.05 * samples, processes_a=[60] * 3, processes_b=[60] * 3).answer == CANT_TELL
    assert blind.high - blind.low < 0.15


def test_neighbours_that_share_a_disturbance_widen_the_interval():
    alternating = [1.0, 1.2] * 30
    in_a_row = [1.0] * 30 + [1.2] * 30
    assert np.ptp(_ends(in_a_row)) > 2 * np.ptp(_ends(alternating))


def _ends(samples):
    found = interval([sample + 1e-3 * i for i, sample in enumerate(samples)])
    return found.low, found.high


def test_a_higher_confidence_is_harder_to_reach():
    before, after = timings(np.random.default_rng(1), 20, 0.05), 1.1 * timings(np.random.default_rng(2), 20, 0.05)
    usual, strict = compare(before, after), compare(before, after, confidence=0.999)
    assert strict.low < usual.low < usual.high < strict.high


def test_few_samples_tell_nothing():
    told = compare([1.0] * 5, [2.0] * 50)
    assert (told.answer, told.ratio, told.low, told.high) == (CANT_TELL, 2.0, 0.0, np.inf)


@pytest.mark.parametrize(
    ("samples", "processes", "message"),
    [
        ([1.0] * 5, None, r"samples: shape \(5,\); a median needs 6 samples"),
        ([1.0] * 5 + [0.0], None, "times must be positive and finite"),
        ([1.0] * 5 + [float("nan")], None, "times must be positive and finite"),
        ([1.0] * 6, [3, 2], r"\[3, 2\] must be counts that add up to the 6 samples"),
        ([1.0] * 6, [6, 0], "must be counts"),
    ],
)
def test_what_are_no_timings_is_refused(samples, processes, message):
    with pytest.raises(ValueError, match=message):
        interval(samples, processes=processes)
