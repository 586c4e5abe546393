"""What can't be simulated is refused by field, before anything runs."""

from __future__ import annotations

import pytest

from kvproof_traces import Request
from kvproof_traces.simulation import GPUS, Pool, Roofline, Scheduler, in_beams, in_parallel, simulate

REQUEST = Request("a", 0.0, 20, 5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Pool(0), "Pool.num_slots: 0 is not a whole number of at least 1"),
        (lambda: Pool(True), "Pool.num_slots: True is not a whole number"),
        (lambda: Pool(15, block_size=16), "Pool.num_slots: 15 is not even one block of 16"),
        (lambda: Pool(64, "page"), "Pool.policy: unknown 'page'; known are paged, contiguous-max"),
        (lambda: Pool(64, "contiguous-max"), "Pool.max_model_len: missing"),
        (lambda: Pool(64, "contiguous-pow2", prefix_cache=True), "Pool.prefix_cache: needs blocks"),
        (lambda: Pool(64, window=4, prefix_cache=True), "Pool.window: is not simulated together with prefix_cache"),
        (lambda: Pool(64, window=0), "Pool.window: 0 is not"),
        (lambda: Pool(64, num_host_blocks=-1), "Pool.num_host_blocks: -1 is not"),
        (lambda: Scheduler("first"), "Scheduler.admission: unknown 'first'; known are stop, skip, smallest"),
        (lambda: Scheduler(preemption="kill"), "Scheduler.preemption: unknown 'kill'; known are recompute, swap"),
        (lambda: Scheduler(watermark=1), "Scheduler.watermark: 1 is not a share"),
        (lambda: Scheduler(max_num_seqs=0), "Scheduler.max_num_seqs: 0 is not"),
        (lambda: Scheduler(token_budget=255), "Scheduler.token_budget: 255 tokens a step are fewer than max_num_seqs"),
        (lambda: Roofline(GPUS["h100"], 0, 1, 1), "Roofline.weight_bytes: 0 is not above 0"),
        (lambda: in_parallel([REQUEST], 0), "num_samples: 0 is not"),
        (lambda: in_beams([REQUEST], 0, 0.1), "width: 0 is not"),
        (lambda: in_beams([REQUEST], 2, -0.1), "replacement_rate: -0.1 is not in 0 to 1,000"),
        (lambda: simulate([REQUEST], Pool(64), step_time=0), "step_time: 0 ms is not a duration"),
    ],
)
def test_a_setting_that_cannot_be_is_named(make, said):
    with pytest.raises(ValueError, match="^" + said.replace(".", r"\.")):
        make()


def test_time_must_not_go_backwards_where_it_counts():
    requests = [Request("a", 5.0, 20, 5), Request("b", 4.0, 20, 5)]
    with pytest.raises(ValueError, match="requests: b arrives before a; sort by arrival_ms"):
        simulate(requests, Pool(1024), step_time=1.0)
    assert simulate(requests, Pool(1024)).num_finished == 2


def test_branches_under_a_window_are_refused_by_request():
    with pytest.raises(ValueError, match=r"Pool\.window: request a has 2 branches"):
        simulate(in_parallel([REQUEST], 2), Pool(1024, window=8))


def test_blocks_that_no_hash_id_fits_are_refused():
    request = Request("a", 0.0, 20, 5, hash_ids=(1, 2), hash_block_size=16)
    with pytest.raises(ValueError, match=r"Pool\.block_size: 24 and the 16 tokens a hash id of request a"):
        simulate([request], Pool(1024, block_size=24, prefix_cache=True))


def test_no_branch_more_than_may_run_at_once():
    assert simulate(in_parallel([REQUEST], 3), Pool(1024), Scheduler(max_num_seqs=2)).num_rejected == 1
