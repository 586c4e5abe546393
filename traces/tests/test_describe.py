"""Figures of traffic: by hand on small traces, against brute force on random ones, and as measured on the real ones."""

from __future__ import annotations

import random
import statistics
from collections import OrderedDict

import pytest

from kvproof_traces import SAMPLES, Request, describe, load


def requests_of(*rows):
    return [Request(f"r{index}", float(ms), prompt, output) for index, (ms, prompt, output) in enumerate(rows)]


def test_lengths_are_interpolated_as_numpy_does():
    numpy = pytest.importorskip("numpy")
    rng = random.Random(1)
    for num_requests in (1, 2, 3, 10, 101):
        prompts = [rng.randrange(1, 30) for _ in range(num_requests)]
        found = describe(requests_of(*((0, prompt, 1) for prompt in prompts))).prompt
        assert (found.p50, found.p90, found.p99) == pytest.approx(numpy.percentile(prompts, [50, 90, 99]))
        assert (found.mean, found.max) == (pytest.approx(statistics.fmean(prompts)), max(prompts))


def test_dispersion_counts_empty_seconds():
    # 3, 0, 1 arrivals in three seconds: mean 4/3, variance (9 + 1)/3 - 16/9.
    arrivals = describe(requests_of((5, 1, 1), (6, 1, 1), (900, 1, 1), (2005, 1, 1))).arrivals
    assert arrivals.dispersion == pytest.approx((10 / 3 - 16 / 9) / (4 / 3))
    assert arrivals.requests_per_second == 2.0
    assert arrivals.num_distinct_times == 4


def test_seconds_are_those_of_the_clock_and_the_first_is_that_of_the_first_arrival():
    # Seconds 7 and 8 have two arrivals each.
    assert describe(requests_of((7900, 1, 1), (7999, 1, 1), (8000, 1, 1), (8999, 1, 1))).arrivals.dispersion == 0


def test_a_trace_without_times_has_no_rate():
    arrivals = describe(requests_of((0, 1, 1), (0, 1, 1))).arrivals
    assert (arrivals.num_distinct_times, arrivals.requests_per_second, arrivals.dispersion) == (1, None, None)


def test_the_sharing_of_the_mooncake_sample_by_hand():
    sharing = describe(load(SAMPLES / "mooncake.jsonl").requests, capacities=[512, 1024]).sharing
    # 1100, 1300 and 512 tokens as blocks 0 1 2, 0 1 3 and 0.
    assert (sharing.num_blocks, sharing.num_distinct_blocks) == (7, 4)
    assert sharing.share_of_blocks == 3 / 7
    assert sharing.share_of_tokens == pytest.approx((1024 + 512) / (1100 + 1300 + 512))
    assert sharing.num_fully_cached == 1
    assert sharing.share_used_once == 2 / 4
    assert sharing.share_with_first_block == 1
    # A block of room holds the head, 0; two hold 0 and 1.
    assert [rate for _, rate in sharing.hit_rates] == pytest.approx([1024 / 2912, (1024 + 512) / 2912])


def random_prompts(seed, size=4):
    """Prompts that continue one another, with some that share nothing known."""
    rng, chains, fresh, requests = random.Random(seed), [()], iter(range(10**9)), []
    for index in range(200):
        parent = rng.choice(chains)
        num_new = rng.randrange(0, 6)
        ids = parent[: rng.randrange(len(parent) + 1)] + tuple(next(fresh) for _ in range(num_new))
        if not ids:
            requests.append(Request(f"r{index}", 0.0, rng.randrange(1, 20), 1, (), size))
            continue
        num_tokens = len(ids) * size - (rng.randrange(size) if num_new else 0)
        requests.append(Request(f"r{index}", 0.0, num_tokens, 1, ids, size))
        chains.append(ids[: num_tokens // size])
    return requests


def brute_force(requests, capacity, size=4):
    """An LRU cache of ``capacity`` tokens, block by block, looked up before anything goes in."""
    cache, hits, unnamed = OrderedDict(), 0, iter(range(-1, -(10**9), -1))
    for request in requests:
        ids = request.hash_ids or tuple(next(unnamed) for _ in range(-(-request.num_prompt_tokens // size)))
        hits += min(sum(value in cache for value in ids) * size, request.num_prompt_tokens)
        for value in reversed(ids):
            cache[value] = None
            cache.move_to_end(value)
        while len(cache) * size > capacity:
            cache.popitem(last=False)
    return hits / sum(request.num_prompt_tokens for request in requests if request.hash_ids)


@pytest.mark.parametrize("seed", range(8))
def test_hit_rates_are_those_of_an_lru_cache_of_each_size(seed):
    requests, capacities = random_prompts(seed), [1, 4, 7, 8, 40, 100, 333, 1000, 10**6]
    found = describe(requests, capacities).sharing
    assert found.hit_rates == tuple((size, pytest.approx(brute_force(requests, size))) for size in capacities)
    assert found.hit_rates[-1][1] == found.share_of_tokens


def test_what_shares_nothing_has_no_figures_of_sharing():
    assert describe(load(SAMPLES / "azure.csv").requests).sharing is None


def test_nothing_can_not_be_described():
    with pytest.raises(ValueError, match="none"):
        describe([])


def test_a_cache_without_room_is_refused():
    with pytest.raises(ValueError, match="capacities: 0 is below 1 token"):
        describe(requests_of((0, 1, 1)), capacities=[3, 0])


def test_requests_out_of_order_are_refused():
    with pytest.raises(ValueError, match="sort by arrival_ms"):
        describe(requests_of((5, 1, 1), (4, 1, 1)))


# As measured, to the printed digits: file, rows, prompt, output, rate, dispersion.
MEASURED = [
    ("AzureLLMInferenceTrace_code.csv", 8819, "2048 1469 5188 7436 7437", "27.9 13 55 251 1899", "2.57", "13.2"),
    ("AzureLLMInferenceTrace_conv.csv", 19366, "1155 1020 2734 4142 14050", "211 129 424 601 1000", "5.53", "1.39"),
    (
        "mooncake_conversation_trace.jsonl",
        12031,
        "12035 6909 27367 85400 126195",
        "343 350 597 1119 2000",
        "3.40",
        "7.9",
    ),
    (
        "mooncake_synthetic_trace.jsonl",
        3993,
        "15325 11587 38611 66456 191378",
        "149 69 389 768 893",
        "3.91",
        "1.09",
    ),
]


def printed(lengths, like):
    digits = len(like.split()[0].partition(".")[2])
    return f"{lengths.mean:.{digits}f} {lengths.p50:.0f} {lengths.p90:.0f} {lengths.p99:.0f} {lengths.max}"


@pytest.mark.parametrize(("name", "num_rows", "prompt", "output", "rate", "dispersion"), MEASURED)
def test_the_real_traces_have_their_measured_figures(real_trace, name, num_rows, prompt, output, rate, dispersion):
    trace = load(real_trace(name))
    found = describe(trace.requests)
    assert found.num_requests == trace.rows_read == num_rows
    assert printed(found.prompt, prompt) == prompt
    assert printed(found.output, output) == output
    assert f"{found.arrivals.requests_per_second:.2f}" == rate
    assert f"{found.arrivals.dispersion:.{len(dispersion.partition('.')[2])}f}" == dispersion


@pytest.mark.parametrize(
    ("name", "blocks", "tokens", "num_full", "at_3m", "num_times"),
    [
        ("mooncake_conversation_trace.jsonl", 36.6, 37.4, 118, 37.1, 1180),
        ("mooncake_synthetic_trace.jsonl", 64.0, 65.1, 213, 48.4, 3993 - 11),
    ],
)
def test_the_real_mooncake_files_share_what_was_measured(real_trace, name, blocks, tokens, num_full, at_3m, num_times):
    found = describe(load(real_trace(name)).requests)
    sharing = found.sharing
    assert (round(100 * sharing.share_of_blocks, 1), round(100 * sharing.share_of_tokens, 1)) == (blocks, tokens)
    assert sharing.num_fully_cached == num_full
    assert found.arrivals.num_distinct_times == num_times
    # Of the most that any cache could find.
    assert round(100 * dict(sharing.hit_rates)[3_000_000] / sharing.share_of_tokens, 1) == at_3m


def test_all_conversations_begin_with_one_block_and_most_blocks_are_used_once(real_trace):
    sharing = describe(load(real_trace("mooncake_conversation_trace.jsonl")).requests).sharing
    assert sharing.share_with_first_block == 1
    assert round(100 * sharing.share_used_once, 1) == 75.8
