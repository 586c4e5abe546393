"""The simulation beside the figures of the PagedAttention paper and of the worked example."""

from __future__ import annotations

import math
import random
import time
import tracemalloc

import pytest

from kvproof_traces import Request
from kvproof_traces.simulation import Pool, Scheduler, in_beams, in_parallel, simulate

WORKED_EXAMPLE = [40, 128, 300, 64, 210, 96, 180, 48, 150, 80, 60, 420, 33, 256, 90, 110]
"""Tokens of each request by its end; a pool of 128 blocks of 16."""


def sharegpt_like(num_requests, seed=1):
    """Log-normal lengths with the means that the paper gives for ShareGPT, cut at 2,048 in total."""
    rng = random.Random(seed)
    for index in range(num_requests):
        prompt = min(2047, log_normal(rng, 161.31, 1.6))
        yield Request(f"r{index}", 0.0, prompt, min(2048 - prompt, log_normal(rng, 337.99, 1.0)))


def log_normal(rng, mean, variation):
    variance = math.log(1 + variation**2)
    return max(1, round(math.exp(rng.gauss(math.log(mean) - variance / 2, math.sqrt(variance)))))


@pytest.mark.parametrize(
    ("policy", "admission", "most"),
    [
        ("contiguous-max", "stop", 4),
        ("contiguous-pow2", "stop", 11),
        ("paged", "stop", 13),
        ("paged", "skip", 14),
        ("paged", "smallest", 15),
    ],
)
def test_the_worked_example_depends_on_policy_and_admission_rule(policy, admission, most):
    requests = [Request(f"r{index}", 0.0, length - 1, 1) for index, length in enumerate(WORKED_EXAMPLE)]
    pool = Pool(128 * 16, policy, max_model_len=512)
    result = simulate(requests, pool, Scheduler(admission=admission, watermark=0))
    assert result.peak_running_requests == most
    assert result.num_finished == 16


@pytest.mark.parametrize(
    ("policy", "shares", "batch"),
    [
        # Fig. 2: tokens, reserved, internal; Fig. 13a.
        ("contiguous-max", (20.4, 13.3, 57.3), 7.00),
        ("contiguous-pow2", (26.8, 17.9, 13.6), 9.81),
        ("contiguous-oracle", (38.2, 25.2, 0.0), 13.62),
    ],
)
def test_reservations_compose_the_pool_as_in_the_paper(policy, shares, batch):
    result = simulate(sharegpt_like(10_000), Pool(15_700, policy, max_model_len=2048))
    got = (result.token_share, result.reserved_share, result.internal_share)
    assert [100 * share for share in got] == pytest.approx(shares, abs=3)
    assert sum(got) + result.external_share == pytest.approx(1)
    assert result.mean_running_seqs == pytest.approx(batch, rel=0.05)


def test_paging_fills_the_pool_with_tokens():
    result = simulate(sharegpt_like(10_000), Pool(15_700))
    assert 100 * result.token_share == pytest.approx(96.3, abs=3)
    assert result.reserved_share == 0
    assert result.internal_share < 0.03
    assert result.mean_running_seqs > 2.2 * 13.18


def test_a_watermark_buys_fewer_preemptions_with_less_use():
    results = [simulate(sharegpt_like(4_000), Pool(15_700), Scheduler(watermark=w)) for w in (0.01, 0.05, 0.1, 0.2)]
    per_2000 = [result.num_preemptions / 2 for result in results]
    # Measured beside the paper: 2,275, 499, 121 and 9, at 97.1, 94.8, 90.8 and 81.8 % use.
    for got, order in zip(per_2000, (2275, 499, 121, 9), strict=True):
        assert order / 2.5 < got < order * 2.5
    shares = [100 * result.token_share for result in results]
    assert shares == sorted(shares, reverse=True)
    assert shares == pytest.approx([97.1, 94.8, 90.8, 81.8], abs=3)


def test_small_blocks_waste_less():
    shares = [simulate(sharegpt_like(3_000), Pool(15_700, block_size=size)).token_share for size in (1, 16, 64, 256)]
    assert shares == sorted(shares, reverse=True)
    assert 100 * shares[-1] == pytest.approx(76.9, abs=4)


@pytest.mark.parametrize("num_samples", [2, 4, 6])
def test_samples_save_the_prompts_share_of_the_blocks(num_samples):
    # All alike and alone: the prompt of 20 full blocks is there once, the mean output takes 10.5 blocks a branch.
    requests = in_parallel([Request(f"r{index}", 0.0, 320, 320) for index in range(5)], num_samples)
    result = simulate(requests, Pool(1_000_000), Scheduler(max_num_seqs=num_samples))
    assert result.sharing_saving == pytest.approx((1 - 1 / num_samples) * 20 / 30.5, rel=1e-12)


@pytest.mark.parametrize("width", [2, 4, 6])
def test_beams_save_more_the_more_often_they_are_replaced_and_never_all(width):
    requests = list(sharegpt_like(60))
    rates = (0, 0.02, 0.5, 0.99)
    savings = [
        simulate(in_beams(requests, width, rate, seed=1), Pool(10**7), Scheduler(max_num_seqs=10**4)).sharing_saving
        for rate in rates
    ]
    assert savings == sorted(savings)
    assert savings[0] > 0
    assert savings[-1] < 1 - 1 / width
    apart = simulate(in_parallel(requests, width), Pool(10**7), Scheduler(max_num_seqs=10**4)).sharing_saving
    assert savings[0] == apart


def test_requests_are_taken_one_by_one():
    taken = 0

    def counted():
        nonlocal taken
        for request in sharegpt_like(3_000):
            taken += 1
            yield request

    gaps = []
    simulate(counted(), Pool(15_700), on_progress=lambda num_ended: gaps.append(taken - num_ended))
    assert taken == 3_000
    assert max(gaps) < 500  # those that run or were preempted, and the next one


def test_memory_does_not_grow_with_the_number_of_requests():
    def peak(num_requests):
        tracemalloc.start()
        simulate(sharegpt_like(num_requests), Pool(15_700))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(4_000) < 1.5 * peak(1_000)


def test_a_million_requests_take_a_minute():
    """On a core of its own; here the processor time of a hundredth, and twice that for machines of another kind."""
    requests = list(sharegpt_like(10_000))
    start = time.process_time()
    simulate(requests, Pool(15_700))
    assert time.process_time() - start < 2 * 60 / 100


def test_a_stream_that_is_empty_is_no_error():
    assert simulate([], Pool(1024)).num_steps == 0
