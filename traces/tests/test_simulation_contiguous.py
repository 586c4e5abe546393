"""Reservations: the buddy allocator beside a map of single slots, the simulation beside one that goes step by step."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvproof_traces import Request
from kvproof_traces.simulation import Pool, Scheduler, in_beams, in_parallel, simulate
from kvproof_traces.simulation.buddy import Buddy, order_of


@pytest.mark.parametrize("num_slots", [1, 64, 100, 157, 1023])
def test_a_chunk_is_found_where_an_aligned_run_of_slots_is_free(num_slots):
    rng, buddy, used, chunks = random.Random(num_slots), Buddy(num_slots), [False] * num_slots, []
    for _ in range(600):
        wanted = rng.choice((1, 2, 3, 5, 8, 17, 33, 70))
        length = 1 << order_of(wanted)
        starts = range(0, num_slots - length + 1, length)
        fits = any(not any(used[start : start + length]) for start in starts)
        assert buddy.can_take(wanted) is fits
        if fits and rng.random() < 0.6:
            start, order = buddy.take(wanted)
            assert (1 << order, start % length) == (length, 0)
            assert not any(used[start : start + length])
            used[start : start + length] = [True] * length
            chunks.append((start, order))
        elif chunks:
            start, order = chunks.pop(rng.randrange(len(chunks)))
            buddy.give_back(start, order)
            used[start : start + (1 << order)] = [False] * (1 << order)


def test_without_a_chunk_that_is_large_enough_nothing_is_taken():
    buddy = Buddy(12)
    assert not buddy.can_take(9)
    with pytest.raises(MemoryError, match="no free chunk of 16 slots"):
        buddy.take(9)
    assert sorted([buddy.take(8), buddy.take(4)]) == [(0, 3), (8, 2)]


def reservation(policy, request, longest):
    output = request.num_output_tokens
    if policy == "contiguous-max":
        return longest
    while policy == "contiguous-pow2" and output & (output - 1):
        output += 1
    return min(longest, request.num_prompt_tokens + output)


def step_by_step(requests, policy, num_slots, longest, step_ms, max_num_seqs):
    """Every slot of every sequence in every step; first come, first served."""
    buddy, got, waiting, running = Buddy(num_slots), Counter(), list(requests), []
    now = start = waiting[0].arrival_ms
    while waiting or running:
        if not running and step_ms:
            now = max(now, waiting[0].arrival_ms)
        while waiting and (not step_ms or waiting[0].arrival_ms <= now):
            request = waiting[0]
            size, places = reservation(policy, request, longest), []
            if sum(len(one[1]) for one in running) + request.num_samples > max_num_seqs:
                break
            while len(places) < request.num_samples and buddy.can_take(size):
                places.append(buddy.take(size))
            if len(places) < request.num_samples:
                for place in reversed(places):
                    buddy.give_back(*place)
                if running:
                    break
                got["rejected"] += 1
            else:
                running.append([request, places, 0])
            waiting.pop(0)
        if not running:
            continue
        for one in running:
            one[2] += one[0].num_generated_tokens > 0
        got["steps"] += 1
        for request, places, generated in running:
            length = request.num_prompt_tokens + request.num_generated_tokens
            got["seqs"] += len(places)
            got["tokens"] += len(places) * (request.num_prompt_tokens + generated)
            got["promised"] += len(places) * length
            got["held"] += len(places) * reservation(policy, request, longest)
        now += step_ms or 0.0
        for one in [one for one in running if one[2] == one[0].num_generated_tokens]:
            running.remove(one)
            got["ended"] += 1
            for place in reversed(one[1]):
                buddy.give_back(*place)
    return got, now - start


def drawn(seed):
    rng, arrival = random.Random(seed), 0.0
    for index in range(40):
        arrival += rng.choice((0.0, 2.0, 30.0))
        output = rng.randint(1, 60)
        abort = rng.randrange(output) if rng.random() < 0.2 else None
        yield Request(
            f"r{index}", arrival, rng.randint(1, 60), output, num_samples=rng.choice((1, 1, 2)), abort_after=abort
        )


@pytest.mark.parametrize("step_ms", [None, 1.0])
@pytest.mark.parametrize("policy", ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])
def test_shares_and_batches_are_those_of_every_slot_in_every_step(policy, step_ms):
    for seed in range(15):
        num_slots = 300 + 37 * seed
        want, now = step_by_step(drawn(seed), policy, num_slots, 128, step_ms, max_num_seqs=6)
        got = simulate(drawn(seed), Pool(num_slots, policy, max_model_len=128), Scheduler(max_num_seqs=6), step_ms)
        slots = want["steps"] * num_slots
        assert (got.num_steps, got.num_rejected) == (want["steps"], want["rejected"])
        assert got.num_finished + got.num_aborted == want["ended"]
        assert got.mean_running_seqs == pytest.approx(want["seqs"] / want["steps"])
        assert got.token_share == pytest.approx(want["tokens"] / slots)
        assert got.reserved_share == pytest.approx((want["promised"] - want["tokens"]) / slots)
        assert got.internal_share == pytest.approx((want["held"] - want["promised"]) / slots)
        assert got.external_share == pytest.approx(1 - want["held"] / slots)
        assert step_ms is None or got.simulated_ms == pytest.approx(now)


def test_a_request_longer_than_the_longest_is_rejected():
    requests = [Request("a", 0.0, 100, 29), Request("b", 0.0, 100, 28)]
    for policy in ("contiguous-max", "contiguous-oracle", "paged"):
        result = simulate(requests, Pool(1024, policy, max_model_len=128))
        assert (result.num_rejected, result.num_finished) == (1, 1)


def test_branches_without_blocks_share_nothing():
    request = [Request("a", 0.0, 100, 28)]
    pool = Pool(1024, "contiguous-max", max_model_len=128)
    for branched in (in_parallel(request, 4), in_beams(request, 4, 0.5)):
        result = simulate(branched, pool)
        assert (result.mean_running_seqs, result.sharing_saving) == (4, 0)
        assert result.token_share + result.reserved_share + result.internal_share == 4 * 128 / 1024
