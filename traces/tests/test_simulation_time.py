"""Step times and latencies."""

from __future__ import annotations

import random

import pytest

from kvproof_traces import Request
from kvproof_traces.simulation import GPUS, Pool, Roofline, Scheduler, simulate
from kvproof_traces.simulation.latencies import Latencies

H100 = Roofline(GPUS["h100"], weight_bytes=16e9, kv_bytes_per_token=131_072, flops_per_token=16e9)


def test_a_step_reads_weights_once_and_every_context():
    assert H100(1, 0, 0) == pytest.approx(1000 * 16e9 / 3.35e12)
    assert H100(64, 100_000, 0) - H100(64, 0, 0) == pytest.approx(1000 * 131_072 * 100_000 / 3.35e12)


def test_a_long_prompt_is_bound_by_arithmetic():
    assert H100(8192, 8192, 0) == pytest.approx(1000 * 16e9 * 8192 / 989e12)


def test_devices_in_parallel_share_the_work_and_swapping_adds_to_it():
    pair = Roofline(GPUS["h100"], 16e9, 131_072, 16e9, num_devices=2)
    assert pair(8, 1000, 0) == pytest.approx(H100(8, 1000, 0) / 2)
    assert H100(8, 1000, 500) - H100(8, 1000, 0) == pytest.approx(1000 * 131_072 * 500 / 64e9)


@pytest.mark.parametrize("name", GPUS)
def test_each_figure_of_a_device_has_a_source(name):
    gpu = GPUS[name]
    assert gpu.source
    assert 1e12 < gpu.memory_bytes_per_second < 1e13
    assert 1e14 < gpu.flops_per_second < 1e16


def test_one_request_alone_takes_what_its_steps_take():
    # The step that computes the prompt gives the first token; the others read a context that grows by one.
    result = simulate([Request("a", 7.0, 100, 4)], Pool(1024), step_time=H100)
    steps = [H100(100, 101, 0), *(H100(1, context, 0) for context in (102, 103, 104))]
    assert result.simulated_ms == pytest.approx(sum(steps))
    assert result.ttft_ms.mean == pytest.approx(steps[0])
    assert result.tpot_ms.mean == pytest.approx(sum(steps[1:]) / 3)


def test_chunks_spread_a_prompt_over_steps():
    seen = []

    def step_time(num_new, num_context, num_swapped):
        seen.append((num_new, num_context))
        return 1.0

    simulate([Request("a", 0.0, 25, 2)], Pool(1024), Scheduler(max_num_seqs=4, token_budget=10), step_time)
    assert seen == [(10, 10), (10, 20), (5, 26), (1, 27)]


def test_a_request_that_comes_late_is_waited_for():
    result = simulate([Request("a", 0.0, 8, 2), Request("b", 1000.0, 8, 2)], Pool(1024), step_time=10.0)
    assert result.simulated_ms == 1020
    assert (result.ttft_ms.mean, result.peak_running_seqs) == (10, 1)


def test_who_waits_for_blocks_has_its_first_token_later():
    requests = [Request("a", 0.0, 60, 4), Request("b", 0.0, 60, 4)]
    apart = simulate(requests, Pool(64, block_size=4), step_time=10.0)
    assert (apart.ttft_ms.mean, apart.simulated_ms) == ((10 + 50) / 2, 80)


def test_percentiles_are_exact_to_half_a_percent():
    rng, latencies = random.Random(1), Latencies()
    values = sorted(rng.lognormvariate(3, 2) for _ in range(5_000))
    for value in values:
        latencies.add(value)
    found = latencies.percentiles()
    assert found.mean == pytest.approx(sum(values) / 5_000)
    for got, share in ((found.p50, 0.5), (found.p90, 0.9), (found.p99, 0.99)):
        assert got == pytest.approx(values[round(share * 5_000) - 1], rel=0.005)


@pytest.mark.parametrize("value", [0.0101, 0.37, 1.0, 5.03, 77.7, 1e6])
def test_a_percentile_lies_in_the_middle_of_its_bin(value):
    latencies = Latencies()
    for step in range(100):
        latencies.add(value * 1.0001**step)
    assert latencies.percentiles().p50 == pytest.approx(value * 1.0001**50, rel=0.0051)


def test_without_a_step_time_there_are_no_latencies():
    result = simulate([Request("a", 0.0, 8, 2)], Pool(1024))
    assert (result.simulated_ms, result.ttft_ms, result.tpot_ms) == (None, None, None)
