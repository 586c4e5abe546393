"""What a replay does to an allocator, and what it says about it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from kvproof_traces import Request, Workload, generate, load, replay
from kvproof_traces.pool_use import longest_alone

WORKED_EXAMPLE = [40, 128, 300, 64, 210, 96, 180, 48, 150, 80, 60, 420, 33, 256, 90, 110]


def prompts(*lengths, num_output_tokens=1):
    return [Request(f"r{index}", 0.0, length, num_output_tokens) for index, length in enumerate(lengths)]


def test_the_worked_example_runs_four_contiguous_against_thirteen_paged(paged, contiguous):
    requests = prompts(*WORKED_EXAMPLE)
    assert replay(requests, contiguous(128, 16, max_len=512)).peak_running_seqs == 4
    allocator = paged(128, 16)
    assert replay(requests, allocator).peak_running_seqs == 13
    # 118 blocks hold the first thirteen; the fourteenth needs 16 of the 10 left, and no later one may overtake it.
    admitted = [seq for name, seq, *_ in allocator.log if name == "allocate"]
    assert admitted[:13] == [(index, 0) for index in range(13)]
    assert allocator.log.index(("append", (12, 0), 1)) < allocator.log.index(("allocate", (13, 0), 256))


def test_every_request_ends_and_everything_is_free_again(paged):
    requests = generate(Workload(num_requests=200, mean_output_tokens=40, sample_share=0.3, fork_share=0.3), seed=4)
    allocator = paged(600, 16)
    result = replay(requests, allocator, max_num_seqs=64)
    assert result.num_finished + result.num_aborted + result.num_rejected == 200
    assert result.num_aborted == sum(request.abort_after is not None for request in requests) > 0
    assert result.num_preemptions > 0
    assert allocator.num_free_blocks() == 600
    assert not allocator.tables
    assert result.num_leaked_blocks == 0


def test_one_token_is_appended_a_step_until_the_output_is_complete(paged):
    allocator = paged(8, 4)
    result = replay(prompts(5, num_output_tokens=3), allocator)
    assert allocator.log == [("allocate", (0, 0), 5), *[("append", (0, 0), 1)] * 3, ("free", (0, 0))]
    assert (result.num_steps, result.num_generated_tokens, result.num_prompt_tokens) == (3, 3, 5)


def test_waste_is_the_share_of_owned_slots_without_a_token(paged):
    result = replay(prompts(5, num_output_tokens=3), paged(8, 4))
    assert result.waste == pytest.approx((2 / 8 + 1 / 8 + 0 / 8) / 3)
    assert result.block_utilisation == 2 / 8


def test_a_reservation_is_waste_until_it_is_used(contiguous):
    result = replay(prompts(40, num_output_tokens=1), contiguous(128, 16, max_len=512))
    assert result.waste == pytest.approx(1 - 41 / 512)
    assert result.block_utilisation == 32 / 128


def test_what_samples_share_counts_once(paged):
    # One prompt of two full blocks, and after the first append a block of its own for each of the four samples.
    request = Request("a", 0.0, 32, 1, num_samples=4)
    result = replay([request], paged(64, 16))
    assert result.peak_running_seqs == 4
    assert result.block_utilisation == 6 / 64
    assert result.waste == pytest.approx(1 - (32 + 4) / (6 * 16))


def test_without_fork_every_sample_has_a_prompt_of_its_own(contiguous):
    request = Request("a", 0.0, 32, 1, num_samples=4)
    result = replay([request], contiguous(16, 16, max_len=64))
    assert (result.peak_running_seqs, result.num_prompt_tokens) == (4, 32)
    assert result.waste == pytest.approx(1 - 4 * 33 / (4 * 64))


def test_copies_are_counted_for_the_samples_that_diverge_in_a_shared_block(paged):
    # The last of four to write finds itself the only owner.
    assert replay([Request("a", 0.0, 30, 1, num_samples=4)], paged(64, 16)).num_block_copies == 3


def test_a_fork_is_made_at_its_position_and_replaces_the_branch_it_names(paged):
    allocator = paged(64, 4)
    replay([Request("a", 0.0, 4, 3, num_samples=2, forks=((1, 0, 1), (2, 1, 7)))], allocator)
    steps = [entry for entry in allocator.log if entry[0] != "append"]
    assert steps == [
        ("allocate", (0, 0), 4),
        ("fork", (0, 0), (0, 1)),
        ("free", (0, 1)),
        ("fork", (0, 0), (0, 1)),
        ("fork", (0, 1), (0, 7)),
        ("free", (0, 0)),
        ("free", (0, 1)),
        ("free", (0, 7)),
    ]
    assert sum(name == "append" for name, *_ in allocator.log) == 2 + 2 + 3


def test_an_aborted_request_stops_after_its_tokens(paged):
    allocator = paged(64, 4)
    result = replay([Request("a", 0.0, 4, 9, abort_after=2), Request("b", 0.0, 4, 9, abort_after=0)], allocator)
    assert (result.num_aborted, result.num_finished) == (2, 0)
    assert allocator.log.count(("append", (0, 0), 1)) == 2
    assert ("append", (1, 0), 1) not in allocator.log


def test_the_request_admitted_last_gives_way_and_is_recomputed(paged):
    # Two of 4 + 8 tokens in four blocks of 4: both run until their third block.
    allocator = paged(4, 4)
    result = replay(prompts(4, 4, num_output_tokens=8), allocator, watermark=0)
    assert result.num_finished == 2
    assert result.num_preemptions == 1
    assert allocator.log.index(("free", (1, 0))) < allocator.log.index(("free", (0, 0)))
    recomputed = [entry for entry in allocator.log if entry[:2] == ("allocate", (1, 0))]
    assert recomputed == [("allocate", (1, 0), 4), ("allocate", (1, 0), 8)]
    assert result.num_recomputed_tokens == 8
    assert result.num_generated_tokens == 16


def test_requests_are_admitted_in_their_order_and_a_preempted_one_comes_before_those_that_wait(paged):
    allocator = paged(40, 4)
    assert replay(prompts(*[9, 30, 5, 17] * 8, num_output_tokens=12), allocator, watermark=0).num_preemptions > 2
    admitted = [seq for name, seq, *_ in allocator.log if name == "allocate"]
    assert list(dict.fromkeys(admitted)) == sorted(set(admitted))
    preempted = []
    for name, seq, *_ in allocator.log:
        if name == "allocate":
            admitted.remove(seq)
            assert not preempted or seq == preempted.pop(0)
        elif name == "free" and seq in admitted:  # it is admitted again later
            preempted = sorted([*preempted, seq])


def test_a_misfit_is_tried_again_only_when_something_was_freed(paged):
    class Counting(paged):
        refusals = 0

        def allocate(self, seq, tokens, key=()):
            try:
                return super().allocate(seq, tokens)
            except MemoryError:
                self.refusals += 1
                raise

    allocator = Counting(16, 4)
    result = replay(prompts(20, 40, num_output_tokens=20), allocator, watermark=0)
    assert (result.num_finished, result.num_steps, allocator.refusals) == (2, 40, 1)


def test_a_preempted_request_comes_back_with_the_tokens_it_had(paged):
    class Recording(paged):
        def free(self, seq):
            self.last = {**getattr(self, "last", {}), seq: self.tokens[seq]}
            super().free(seq)

    tight, roomy = Recording(20, 4), Recording(1000, 4)
    requests = [Request(f"r{index}", 0.0, 6, 12, num_samples=2) for index in range(6)]
    assert replay(requests, tight, watermark=0).num_preemptions > 0
    assert replay(requests, roomy, watermark=0).num_preemptions == 0
    for seq, tokens in roomy.last.items():
        assert len(tight.last[seq]) == len(tokens) == 18
        assert len(set(tight.last[seq])) == 18


def test_what_can_never_fit_is_rejected_and_the_rest_goes_on(paged):
    allocator = paged(16, 4)
    result = replay(prompts(8, 60, 8, num_output_tokens=8), allocator)
    assert (result.num_finished, result.num_rejected, result.num_preemptions) == (2, 1, 0)
    assert ("allocate", (1, 0), 60) not in allocator.log


def test_branches_that_outgrow_the_pool_together_are_rejected_once_alone(paged):
    # One sample needs 5 blocks of 16, four of them 4 + 4·4.
    request = Request("a", 0.0, 16, 16, num_samples=4)
    assert paged(16, 4).can_allocate(32)
    allocator = paged(16, 4)
    result = replay([request, *prompts(4)], allocator)
    assert (result.num_finished, result.num_rejected) == (1, 1)
    assert allocator.num_free_blocks() == 16


def test_a_request_rejected_at_the_door_takes_no_place_in_the_batch(contiguous):
    # Four samples without fork want four places, there are two.
    requests = [Request("a", 0.0, 4, 3, num_samples=4), *prompts(4, 4, num_output_tokens=3)]
    result = replay(requests, contiguous(32, 4, max_len=64), max_num_seqs=5)
    assert (result.num_rejected, result.num_finished, result.num_steps) == (1, 2, 3)


def test_more_branches_than_may_run_are_rejected(paged):
    result = replay([Request("a", 0.0, 4, 4, num_samples=5)], paged(64, 4), max_num_seqs=4)
    assert result.num_rejected == 1


def test_the_number_of_running_sequences_is_bounded_branches_included(paged):
    requests = [Request(f"r{index}", 0.0, 4, 4, num_samples=3) for index in range(5)]
    assert replay(requests, paged(999, 4), max_num_seqs=7).peak_running_seqs == 6


def test_an_allocator_that_never_has_room_ends_the_replay_as_well(paged):
    class Full(paged):
        def allocate(self, seq, tokens, key=()):
            raise MemoryError

    result = replay(prompts(4, 4, 4), Full(16, 4))
    assert (result.num_rejected, result.num_steps, result.churned) == (3, 0, None)


def test_a_watermark_trades_utilisation_for_preemptions(paged):
    plain = Workload(150, max_prompt_tokens=600, prefix_share=0, sample_share=0, fork_share=0, abort_share=0)
    low, middle, high = (replay(generate(plain), paged(400, 16), watermark=share) for share in (0, 0.05, 0.2))
    assert low.num_preemptions > 10 * middle.num_preemptions > high.num_preemptions == 0
    assert low.block_utilisation > middle.block_utilisation > high.block_utilisation


def test_a_watermark_never_starves_a_request_that_has_the_pool_for_itself(paged):
    assert replay(prompts(60), paged(16, 4), watermark=0.9).num_finished == 1


def test_prompts_with_the_same_hash_ids_are_found_cached_and_others_are_not(prefix_caching):
    shared = [
        Request("a", 0.0, 40, 1, hash_ids=(5, 6, 7), hash_block_size=16),
        Request("b", 0.0, 48, 1, hash_ids=(5, 6, 9), hash_block_size=16),
        Request("c", 0.0, 48, 1),
    ]
    # One at a time, since nothing is found before its first step is over.
    result = replay(shared, prefix_caching(64, 8), max_num_seqs=1)
    assert result.prefix_hit_rate == 32 / (40 + 48 + 48)


def test_nothing_is_found_cached_within_the_step_that_computes_it(prefix_caching):
    same = [Request(name, 0.0, 16, 1, hash_ids=(5,), hash_block_size=16) for name in "ab"]
    assert replay(same, prefix_caching(64, 8)).prefix_hit_rate == 0


def test_recomputation_does_not_count_as_a_hit(prefix_caching):
    result = replay(prompts(4, 4, num_output_tokens=8), prefix_caching(4, 4), watermark=0)
    assert result.num_preemptions > 0
    assert result.prefix_hit_rate == 0


def test_the_tables_left_behind_are_those_of_the_busiest_late_step(paged):
    requests = prompts(*[20] * 60, num_output_tokens=30)
    result = replay(requests, paged(64, 4))
    assert result.churned is not None
    assert (result.churned.block_size, result.churned.num_blocks) == (4, 64)
    assert len(result.block_tables) == len(result.context_lens) > 1
    for table, length in zip(result.block_tables, result.context_lens, strict=True):
        assert len(table) == math.ceil(length / 4)
    used = [block for table in result.block_tables for block in table]
    assert len(used) == len(set(used))
    assert any(after != before + 1 for table in result.block_tables for before, after in pairwise(table))


def test_a_busier_step_before_the_last_third_is_not_taken(paged):
    crowd, late = prompts(*[4] * 8, num_output_tokens=2), prompts(8, 8, num_output_tokens=9)
    result = replay([*crowd, *late], paged(64, 4))
    assert result.peak_running_seqs == 10
    assert result.context_lens == (11, 11)


def test_a_replay_that_ends_all_at_once_leaves_its_busiest_step(paged):
    assert replay(prompts(4, 4, num_output_tokens=2), paged(64, 4)).context_lens == (5, 5)


def test_requests_come_at_their_time_when_a_step_has_a_length(paged):
    requests = [
        Request("a", 0.0, 4, 3),
        Request("b", 10.0, 4, 3),
        Request("c", 1e12, 4, 3),
    ]  # idle time is not stepped through
    apart = replay(requests, paged(64, 4), step_ms=10)
    assert (apart.peak_running_seqs, apart.num_steps) == (2, 4 + 3)
    assert replay(requests, paged(64, 4)).num_steps == 3


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"watermark": 1}, "watermark"),
        ({"watermark": -0.1}, "watermark"),
        ({"watermark": float("nan")}, "watermark"),
        ({"step_ms": 0}, "step_ms"),
    ],
)
def test_an_impossible_argument_is_refused_by_name(paged, arguments, name):
    with pytest.raises(ValueError, match=name):
        replay(prompts(4), paged(64, 4), **arguments)


def test_arrivals_out_of_order_are_refused_when_time_counts(paged):
    requests = [Request("a", 5.0, 4, 3), Request("b", 1.0, 4, 3)]
    assert replay(requests, paged(64, 4)).num_finished == 2
    with pytest.raises(ValueError, match="b arrives before a"):
        replay(requests, paged(64, 4), step_ms=1)


def test_what_is_longer_than_the_pool_is_tried_where_an_allocator_says_that_it_fits(paged):
    """As with a window, which gives blocks back while it goes on."""

    class Windowed(paged):
        def can_allocate(self, num_tokens):
            return num_tokens <= 100

    for allocator, longest in ((paged(8, 4), 32), (Windowed(8, 4), 100), (paged(0, 4), 0)):
        assert longest_alone(allocator) == longest


def test_an_allocator_that_loses_blocks_is_told(paged):
    class Leaky(paged):
        def free(self, seq):
            self.tables[seq].pop()
            super().free(seq)

    assert replay(prompts(4, 4), Leaky(64, 4)).num_leaked_blocks == 2


def test_only_time_inside_the_allocator_is_counted(paged, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("kvproof_traces.calls.perf_counter", lambda: next(clock))
    # allocate, three appends, free: each reads the clock before and after.
    assert replay(prompts(5, num_output_tokens=3), paged(8, 4)).allocator_seconds == 5


def test_the_real_conversation_trace_replays(real_trace, paged):
    requests = load(real_trace("AzureLLMInferenceTrace_conv.csv"), limit=100).requests
    result = replay(requests, paged(2048, 16))
    assert result.num_finished == 100
    assert result.num_generated_tokens == sum(request.num_output_tokens for request in requests)
    # Half a block of some 90 a sequence.
    assert 0.001 < result.waste < 0.02
