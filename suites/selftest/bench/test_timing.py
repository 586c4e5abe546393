"""Timing: what is timed, how often, and what is said of the samples."""

import statistics

import pytest
import torch

from kvproof_suites.bench import timing
from kvproof_suites.bench.timing import PLAYBACK, Timing, pinned_threads, tell


def test_quartiles_are_those_of_the_samples_in_milliseconds():
    told = Timing((0.001, 0.005, 0.002, 0.004, 0.003), {"throttled": False}).fields()
    assert {name: told[name] for name in ("q1_ms", "median_ms", "q3_ms")} == pytest.approx(
        {"q1_ms": 2.0, "median_ms": 3.0, "q3_ms": 4.0}
    )
    assert (told["num_samples"], told["clocks"]) == (5, {"throttled": False})


def test_one_sample_is_its_own_quartiles():
    assert Timing((0.002,)).quartiles_ms == (2.0, 2.0, 2.0)


def test_a_sample_of_many_operations_is_divided_among_them():
    assert Timing((0.008, 0.004)).per(4) == Timing((0.002, 0.001))
    assert Timing((0.008, 0.004), on_core=(0.004, 0.004)).per(4).fields()["core_ms"] == [1.0, 1.0]


def test_samples_are_enough_by_their_number_or_by_their_spread():
    steady, noisy = [1.0, 1.001] * 6, [1.0, 1.5] * 6
    assert timing.enough(steady)
    assert not timing.enough(steady[:10]), "ten equal samples may be luck"
    assert not timing.enough(noisy)
    assert timing.enough([1.0, 1.5] * 25)


def test_the_standard_error_of_a_median_is_that_of_many_draws():
    generator = torch.Generator().manual_seed(0)
    draws = 100 + torch.randn(4000, 101, generator=generator)
    found = [timing.relative_standard_error(draw) for draw in draws[:200].tolist()]
    assert statistics.mean(found) == pytest.approx(float(draws.median(1).values.std()) / 100, rel=0.1)


@pytest.mark.benchmark(timer=PLAYBACK)
def test_pytest_benchmark_is_told_the_samples_that_were_taken(benchmark):
    taken = (0.002, 0.001, 0.004)
    if benchmark.enabled:
        tell(benchmark, Timing(taken))
        assert benchmark.stats.stats.data == list(taken)
    else:  # under pytest-xdist
        benchmark(lambda: None)


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
