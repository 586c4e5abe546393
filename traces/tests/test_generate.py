"""Generated workloads: the same for the same seed, with the traits that were asked for."""

from __future__ import annotations

import math
import statistics

import pytest

from kvproof_traces import SAMPLES, Workload, generate, load


def test_the_same_seed_gives_the_requests_that_were_shipped():
    assert generate(Workload(num_requests=64), seed=1) == load(SAMPLES / "native.jsonl").requests


def test_another_seed_gives_others():
    assert generate(seed=1) != generate(seed=2)


def test_more_requests_begin_with_the_same_ones():
    assert generate(Workload(num_requests=20)) == generate(Workload(num_requests=40))[:20]


def test_changing_one_share_leaves_the_other_traits_alone():
    def traits(requests):
        return [(r.arrival_ms, r.num_output_tokens, r.num_samples, r.num_prompt_tokens) for r in requests]

    assert traits(generate(Workload(abort_share=0))) == traits(generate(Workload(abort_share=1)))


def test_the_means_are_those_asked_for_within_five_standard_errors():
    workload = Workload(
        num_requests=4000, prefix_share=0, max_prompt_tokens=10**6, max_output_tokens=10**6, requests_per_second=8
    )
    requests = generate(workload, seed=5)
    root = math.sqrt(len(requests))
    # Standard deviations: of a log-normal mean·sqrt(e^sigma² - 1), of a geometric and of an exponential about the mean.
    prompt_error = 5 * 400 * math.sqrt(math.e - 1) / root
    assert statistics.fmean(r.num_prompt_tokens for r in requests) == pytest.approx(400, abs=prompt_error)
    assert statistics.fmean(r.num_output_tokens for r in requests) == pytest.approx(100, abs=5 * 100 / root)
    assert requests[-1].arrival_ms / len(requests) == pytest.approx(125, abs=5 * 125 / root)


@pytest.mark.parametrize(
    ("share", "has_trait"),
    [
        ("sample_share", lambda r: r.num_samples > 1),
        ("fork_share", lambda r: bool(r.forks)),
        ("abort_share", lambda r: r.abort_after is not None),
        ("prefix_share", lambda r: r.hash_ids[0] < 64),
    ],
)
def test_a_share_is_met_within_five_standard_errors(share, has_trait):
    requests = generate(Workload(num_requests=2000, **{share: 0.25}), seed=9)
    bound = 5 * math.sqrt(0.25 * 0.75 / 2000)
    assert sum(map(has_trait, requests)) / 2000 == pytest.approx(0.25, abs=bound)


def test_a_shared_prefix_is_all_that_two_requests_share():
    requests = generate(Workload(prefix_share=0.5, num_prefixes=1, prefix_tokens=64))
    shared = [r for r in requests if r.hash_ids[:4] == (0, 1, 2, 3)]
    assert 0 < len(shared) < len(requests)
    own = [value for r in requests for value in r.hash_ids if value > 3]
    assert len(own) == len(set(own))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("abort_share", 1.5),
        ("num_requests", 0),
        ("mean_output_tokens", 0),
        ("prompt_sigma", -1),
        ("hash_block_size", 0),
    ],
)
def test_an_impossible_workload_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        Workload(**{field: value})
