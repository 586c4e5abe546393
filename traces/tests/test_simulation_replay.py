"""What the simulation counts is what a replay through a real allocator sees."""

from __future__ import annotations

import pytest

from kvproof_traces import Workload, generate, replay
from kvproof_traces.simulation import Pool, Scheduler, simulate

COUNTS = """
num_finished num_aborted num_rejected num_steps num_preemptions peak_running_seqs num_prompt_tokens
num_generated_tokens num_recomputed_tokens num_block_copies
"""
LINEAR = Workload(num_requests=250, mean_output_tokens=60, sample_share=0, fork_share=0)
BRANCHING = Workload(num_requests=150, mean_output_tokens=40, sample_share=0.4, fork_share=0.4)


def assert_same(simulated, replayed):
    want = {name: getattr(replayed, name) for name in COUNTS.split()}
    assert {name: getattr(simulated, name) for name in COUNTS.split()} == want
    assert simulated.mean_running_seqs == pytest.approx(replayed.mean_running_seqs)
    used = simulated.token_share + simulated.reserved_share + simulated.internal_share
    assert used == pytest.approx(replayed.block_utilisation)


@pytest.mark.parametrize("step_ms", [None, 20.0])
@pytest.mark.parametrize("watermark", [0, 0.01, 0.1])
def test_paged(paged, watermark, step_ms):
    requests = generate(LINEAR, seed=3)
    replayed = replay(requests, paged(400, 16), max_num_seqs=64, watermark=watermark, step_ms=step_ms)
    scheduler = Scheduler(max_num_seqs=64, watermark=watermark)
    assert_same(simulate(requests, Pool(400 * 16), scheduler, step_ms), replayed)
    assert step_ms or watermark or replayed.num_preemptions > 0
    assert replayed.num_aborted > 0


def test_branches_with_room_for_all(paged):
    requests = generate(BRANCHING, seed=5)
    replayed = replay(requests, paged(9_000, 16), max_num_seqs=100)
    assert_same(simulate(requests, Pool(9_000 * 16), Scheduler(max_num_seqs=100)), replayed)
    assert (replayed.num_preemptions, replayed.num_block_copies > 100) == (0, True)


def test_the_longest_length_reserved(contiguous):
    requests = generate(LINEAR, seed=7)
    # A pool of eight places that are powers of two, so that the buddy allocator's are the same.
    replayed = replay(requests, contiguous(8 * 128, 16, max_len=2048), watermark=0)
    pool = Pool(8 * 2048, "contiguous-max", max_model_len=2048)
    assert_same(simulate(requests, pool, Scheduler()), replayed)


def test_prefixes_are_found_where_nothing_is_evicted(prefix_caching):
    requests = generate(Workload(num_requests=120, prefix_share=0.8, sample_share=0, fork_share=0), seed=2)
    replayed = replay(requests, prefix_caching(20_000, 16), max_num_seqs=8)
    simulated = simulate(requests, Pool(20_000 * 16, prefix_cache=True), Scheduler(max_num_seqs=8))
    assert simulated.prefix_hit_rate == pytest.approx(replayed.prefix_hit_rate)
    assert simulated.prefix_hit_rate > 0.2
    assert simulated.num_steps == replayed.num_steps
