"""Traffic that is like published traffic: every published figure comes out within the error of its own sample."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from functools import cache

import pytest

from kvproof_traces import PROFILES, describe, generate_like, load, write_native
from kvproof_traces.distributions import LogNormal, Percentiles
from kvproof_traces.generate_like import NUM_RECENT, Prefixes, arrivals

NUM_REQUESTS = 4000
# Five standard errors: one false alarm in two million, and the seed is fixed besides.
NUM_ERRORS = 5


@cache
def made_up(name):
    return tuple(generate_like(name, NUM_REQUESTS, seed=2))


def lengths_of(name, which):
    return [getattr(request, f"num_{which}_tokens") for request in made_up(name)]


LENGTHS = [(name, which) for name in PROFILES for which in ("prompt", "output")]


@pytest.mark.parametrize(("name", "which"), LENGTHS)
def test_the_published_mean_comes_out(name, which):
    values = lengths_of(name, which)
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert statistics.fmean(values) == pytest.approx(getattr(PROFILES[name], which).mean, abs=NUM_ERRORS * error)


@pytest.mark.parametrize(("name", "which"), LENGTHS)
def test_the_published_percentiles_come_out(name, which):
    published, values = getattr(PROFILES[name], which), lengths_of(name, which)
    if not isinstance(published, Percentiles):
        assert 1 <= min(values) <= max(values) <= published.max
        return
    assert published.min <= min(values) <= max(values) <= published.max
    for share, length in ((0.5, published.p50), (0.9, published.p90), (0.99, published.p99)):
        # How many lie below is binomial; rounding moves a length by less than 1.
        bound = NUM_ERRORS * math.sqrt(share * (1 - share) / len(values))
        below = sum(value <= length - 1 for value in values) / len(values)
        up_to = sum(value <= length + 1 for value in values) / len(values)
        assert below - bound <= share <= up_to + bound


ARRIVALS = sorted({(profile.requests_per_second, profile.dispersion) for profile in PROFILES.values()})


@pytest.mark.parametrize(("rate", "dispersion"), [*ARRIVALS, (0.5, 1.0)])
def test_rate_and_dispersion_come_out(rate, dispersion):
    num_seconds, counts = int(60_000 / rate), Counter[int]()
    for ms in arrivals(rate, dispersion, seed=1):
        if ms >= num_seconds * 1000:
            break
        counts[int(ms // 1000)] += 1
    bins = [counts[second] for second in range(num_seconds)]
    mean, variance = statistics.fmean(bins), statistics.pvariance(bins)
    assert mean == pytest.approx(rate, abs=NUM_ERRORS * math.sqrt(variance / num_seconds))
    fourth = statistics.fmean((value - mean) ** 4 for value in bins)
    error = math.sqrt((fourth - variance**2) / num_seconds) / mean
    assert variance / mean == pytest.approx(dispersion, abs=NUM_ERRORS * error)


@pytest.mark.parametrize("name", [name for name in PROFILES if PROFILES[name].shared])
def test_the_published_share_of_blocks_is_shared(name):
    profile = PROFILES[name]
    found = describe(made_up(name)).sharing
    blocks = [len(request.hash_ids) for request in made_up(name)]
    # The share aimed at is Σ n·F/Σ n with F = Vᵃ, of mean s and E[F²] = 1/(2a + 1); what is owed at the end is at most
    # one prompt, and before there are prompts to continue nothing can be shared.
    spread = 1 / (2 * (1 / profile.shared - 1) + 1) - profile.shared**2
    error = math.sqrt(spread * sum(count**2 for count in blocks)) / sum(blocks)
    owed = max(blocks) / sum(blocks)
    assert found.share_of_blocks == pytest.approx(profile.shared, abs=NUM_ERRORS * error + owed)


def test_a_common_first_block_is_common():
    assert describe(made_up("mooncake-chat")).sharing.share_with_first_block == 1


def test_only_profiles_with_sharing_have_hash_ids():
    assert all(bool(made_up(name)[0].hash_ids) == (PROFILES[name].shared is not None) for name in PROFILES)


def test_beams_are_replaced_as_often_as_stated():
    profile, requests = PROFILES["beam"], made_up("beam")
    num_steps = sum(request.num_output_tokens for request in requests)
    num_forks = sum(len(request.forks) for request in requests)
    bound = NUM_ERRORS * math.sqrt(num_steps * 0.25)
    assert num_forks == pytest.approx(profile.replacements_per_step * num_steps, abs=bound)
    assert {request.num_samples for request in requests} == {request.num_branches for request in requests} == {4}


@pytest.mark.parametrize("name", PROFILES)
def test_the_same_seed_gives_the_same_and_more_requests_begin_with_them(name):
    few = tuple(generate_like(name, 50, seed=2))
    assert few == made_up(name)[:50]
    assert few != tuple(generate_like(name, 50, seed=3))


@pytest.mark.parametrize("name", PROFILES)
def test_what_is_made_up_is_read_back_with_all_checks(tmp_path, name):
    path = tmp_path / "trace.jsonl"
    write_native(path, made_up(name)[:300])
    assert load(path).requests == made_up(name)[:300]


def test_another_rate_moves_the_times_alone():
    slow, fast = (list(generate_like("alpaca", 1000, requests_per_second=rate)) for rate in (0.5, 1))
    assert [r.num_prompt_tokens for r in slow] == [r.num_prompt_tokens for r in fast]
    # Half the mean gap, each sum with a relative standard error of 1/sqrt(1000).
    assert slow[-1].arrival_ms / fast[-1].arrival_ms == pytest.approx(2, abs=NUM_ERRORS * 2 * math.sqrt(2 / 1000))


def test_no_more_than_recent_prompts_are_remembered():
    prefixes = Prefixes(PROFILES["rag"], random.Random(0))
    for _ in range(NUM_RECENT + 10):
        prefixes.of(40)
    assert len(prefixes.recent) == NUM_RECENT


def test_a_mean_that_the_percentiles_exclude_is_refused():
    with pytest.raises(ValueError, match="not between what the percentiles allow"):
        Percentiles(mean=1000, min=1, p50=2, p90=3, p99=4, max=5)


def test_a_cut_keeps_the_mean_that_was_asked_for():
    cut = LogNormal(mean=100, variation=3.0, max=300)
    shares = [(index + 0.5) / 100_000 for index in range(100_000)]
    # The midpoint rule on a monotone function: off by less than a step of the widest piece.
    assert statistics.fmean(map(cut.quantile, shares)) == pytest.approx(100, abs=300 / 100_000)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("alpacca", 1), "known are sharegpt, alpaca"), (("alpaca", 0), "num_requests: 0 is below 1")],
)
def test_what_can_not_be_made_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        generate_like(*arguments)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("azure-code", "AzureLLMInferenceTrace_code.csv"),
        ("azure-conv", "AzureLLMInferenceTrace_conv.csv"),
        ("mooncake-chat", "mooncake_conversation_trace.jsonl"),
        ("long-context", "mooncake_synthetic_trace.jsonl"),
    ],
)
def test_the_table_holds_what_is_measured_on_the_real_file(real_trace, name, file):
    requests, profile = load(real_trace(file)).requests, PROFILES[name]
    measured = describe(requests)
    for which in ("prompt", "output"):
        table, found = getattr(profile, which), getattr(measured, which)
        assert (round(found.mean, 2), found.max) == (table.mean, table.max)
        assert [found.p50, found.p90, found.p99] == pytest.approx([table.p50, table.p90, table.p99], abs=0.51)
        assert table.min == min(getattr(request, f"num_{which}_tokens") for request in requests)
    assert measured.arrivals.requests_per_second == pytest.approx(profile.requests_per_second, rel=5e-4)
    assert measured.arrivals.dispersion == pytest.approx(profile.dispersion, rel=5e-4)
    if profile.shared:
        assert measured.sharing.share_of_blocks == pytest.approx(profile.shared, abs=5e-5)
        assert (measured.sharing.share_with_first_block == 1) == profile.has_common_block
