"""Parts of a trace: by rows, by time, at random; their times begin at 0, and no more is read than is needed."""

from __future__ import annotations

import math
from itertools import count, pairwise

import pytest

from kvproof_traces import Request, Workload, generate
from kvproof_traces.slicing import between, from_zero, rows, sample

REQUESTS = generate(Workload(num_requests=100))


def endless():
    return (Request(f"r{index}", float(index), 1, 1) for index in count())


def test_rows_are_counted_from_0_and_the_last_is_not_taken():
    assert tuple(rows(REQUESTS, 3, 5)) == REQUESTS[3:5]
    assert tuple(rows(REQUESTS, 90)) == REQUESTS[90:]


def test_a_time_belongs_to_the_interval_that_it_starts():
    assert [r.arrival_ms for r in between(endless(), 3, 5)] == [3.0, 4.0]


@pytest.mark.parametrize("part", [lambda r: rows(r, 2, 4), lambda r: between(r, 2, 4)])
def test_what_comes_after_is_not_read(part):
    assert len(tuple(part(endless()))) == 2


def test_times_begin_at_zero_and_nothing_else_changes():
    moved = list(from_zero(REQUESTS[7:20]))
    assert moved[0].arrival_ms == 0.0
    gaps = [b.arrival_ms - a.arrival_ms for a, b in pairwise(REQUESTS[7:20])]
    assert [b.arrival_ms - a.arrival_ms for a, b in pairwise(moved)] == pytest.approx(gaps)
    assert [(r.request_id, r.hash_ids, r.forks) for r in moved] == [
        (r.request_id, r.hash_ids, r.forks) for r in REQUESTS[7:20]
    ]


def test_a_sample_is_in_order_of_arrival_and_the_same_for_the_same_seed():
    drawn = sample(REQUESTS, 30, seed=4)
    assert len(set(drawn)) == 30
    assert list(drawn) == sorted(drawn, key=REQUESTS.index)
    assert drawn == sample(iter(REQUESTS), 30, seed=4) != sample(REQUESTS, 30, seed=5)


def test_a_sample_of_more_than_there_are_is_all():
    assert sample(REQUESTS, 1000) == REQUESTS


def test_every_request_is_as_likely_as_another():
    num_draws, taken = 2000, dict.fromkeys(range(10), 0)
    for seed in range(num_draws):
        for request in sample(REQUESTS[:10], 3, seed=seed):
            taken[REQUESTS.index(request)] += 1
    # Binomial with p = 3/10: five standard deviations.
    bound = 5 * math.sqrt(num_draws * 0.3 * 0.7)
    assert all(abs(times - 0.3 * num_draws) < bound for times in taken.values()), taken


@pytest.mark.parametrize("bad", [lambda: rows([], 3, 3), lambda: between([], 5, 4), lambda: sample([], 0)])
def test_an_empty_part_is_refused(bad):
    with pytest.raises(ValueError, match=r"rows|times|sample"):
        bad()
