"""Means of a saturated server do not count the time in which it empties."""

from __future__ import annotations

import pytest

from kvproof_traces import Request
from kvproof_traces.simulation import Pool, Scheduler, simulate

MANY = [Request(f"r{i}", 0.0, 8, 92) for i in range(499)] + [Request("long", 0.0, 8, 120)]


@pytest.mark.parametrize("policy", ["contiguous-oracle", "contiguous-max"])
def test_a_full_pool_is_full_in_every_step(policy):
    pool = Pool(5 * 128, policy, max_model_len=128)
    assert simulate(MANY, pool, saturated=True).mean_running_seqs == 5
    assert simulate(MANY, pool).mean_running_seqs < 5


def test_it_stops_when_the_last_request_has_been_admitted():
    run = simulate(MANY, Pool(5 * 128, "contiguous-oracle"), saturated=True)
    assert (run.num_requests, run.num_finished, run.num_steps) == (500, 495, 99 * 92)


def test_preempted_requests_wait_too():
    each = [Request(f"r{i}", 0.0, 16, 64) for i in range(40)]
    run = simulate(each, Pool(16 * 12), Scheduler(watermark=0.0), saturated=True)
    assert run.num_preemptions > 0
    assert run.num_finished < 40


def test_where_all_fit_at_once_no_step_is_one_of_a_saturated_server():
    assert simulate(MANY[:3], Pool(5 * 128, "contiguous-oracle"), saturated=True).num_steps == 0
