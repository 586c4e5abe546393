"""Timing: what is timed, how often, and what is said of the samples."""

import time

import pytest
import torch

from kvproof_suites.bench import timing
from kvproof_suites.bench.timing import Timing, measure, num_rounds, pinned_threads


def test_quartiles_are_those_of_the_samples_in_milliseconds():
    assert Timing((0.001, 0.005, 0.002, 0.004, 0.003)).fields() == pytest.approx(
        {"q1_ms": 2.0, "median_ms": 3.0, "q3_ms": 4.0, "num_samples": 5}
    )


def test_one_sample_is_its_own_quartiles():
    assert Timing((0.002,)).quartiles_ms == (2.0, 2.0, 2.0)


def test_a_sample_of_many_operations_is_divided_among_them():
    assert Timing((0.008, 0.004)).per(4).samples == (0.002, 0.001)


@pytest.mark.parametrize(("seconds", "rounds"), [(1e-6, 20), (0.04, 20), (0.08, 10), (10.0, 5), (0.0, 20)])
def test_rounds_fill_the_budget_between_the_fewest_and_enough(seconds, rounds):
    assert num_rounds(seconds) == rounds


def test_inputs_take_turns_and_are_prepared_off_the_clock(benchmark, monkeypatch):
    monkeypatch.setattr(timing, "BUDGET_SECONDS", 0.0)  # the fewest samples
    seen = []

    def prepare(given):
        time.sleep(0.02)
        return given.upper()

    measured = measure(benchmark, seen.append, ["a", "b"], "cpu", prepare)
    if measured is None:  # pytest-xdist or --benchmark-disable: one untimed call after the warm-up
        assert seen == list("ABAA")
        return
    assert seen == list("ABAABABA")
    assert len(measured.samples) == 5
    assert measured.median_seconds < 0.02


def test_threads_are_set_for_the_measurement_and_set_back():
    before = torch.get_num_threads()
    with pinned_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_the_roof_is_bytes_over_seconds(monkeypatch):
    monkeypatch.setattr(timing, "ROOF_BYTES", 4096)
    monkeypatch.setattr(timing, "stopwatch", lambda call: call() or 0.001)
    found = timing.roof.__wrapped__("cpu")
    assert (found.read_gb_per_second, found.copy_gb_per_second) == pytest.approx((0.004096, 0.008192))
