"""A stream is replayed as a list is, one request at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvproof_traces import Request, Workload, generate, replay


@pytest.mark.parametrize("step_ms", [None, 100])
def test_a_stream_is_replayed_as_a_list_is(paged, step_ms):
    requests = generate(Workload(num_requests=200, mean_output_tokens=40, sample_share=0.3, fork_share=0.3), seed=4)
    requests = [*requests, Request("too long", 1e9, 20_000, 1), Request("last", 1e9, 4, 1)]
    arguments = {"max_num_seqs": 64, "step_ms": step_ms}
    listed, streamed, counted = (
        replace(replay(given, paged(600, 16), **arguments, **more), allocator_seconds=0)
        for given, more in ((requests, {}), (iter(requests), {}), (iter(requests), {"num_requests": 202}))
    )
    assert listed.num_preemptions > 0
    assert listed.num_rejected > 0
    assert counted == listed
    assert replace(streamed, churned=listed.churned) == listed
    assert len(streamed.context_lens) >= len(listed.context_lens)


def test_of_a_stream_one_request_waits_and_no_more(paged):
    taken, admitted = [], set()
    requests = (taken.append(index) or Request(f"r{index}", 0.0, 4, 1) for index in range(100))

    class Counting(paged):
        def allocate(self, seq, *arguments):
            admitted.add(seq)
            assert len(taken) <= len(admitted) + 2
            return super().allocate(seq, *arguments)

    assert replay(requests, Counting(8, 4)).num_finished == 100


def test_a_stream_out_of_order_is_refused_where_it_is(paged):
    with pytest.raises(ValueError, match="b arrives before a"):
        replay(iter([Request("a", 5.0, 4, 3), Request("b", 1.0, 4, 3)]), paged(64, 4), step_ms=1)
