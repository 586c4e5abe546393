"""The simulation beside the figures of the PagedAttention paper and of the worked example."""

from __future__ import annotations

import math
import random

import pytest

from kvproof_traces import Request
from kvproof_traces.simulation import Pool, Scheduler, simulate

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
