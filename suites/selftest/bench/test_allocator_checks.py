"""An allocator's time is believed only when it handed out blocks of its own to each, and took all of them back."""

from types import SimpleNamespace

import pytest

from kvproof_impls.registry import load
from kvproof_suites.bench.allocator_calls import AllocatorCalls, admissible, filled, require_disjoint_tables
from kvproof_suites.bench.cells import HostCell
from kvproof_suites.bench.clocks import HostClock
from kvproof_suites.bench.contests import NotTimed, Ready
from kvproof_suites.bench.planning import MOST_SEQS, OPERATIONS, STEPS
from kvproof_suites.bench.race import race
from kvproof_suites.bench.step_contest import StepContest
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import MakeAllocator


def make(name):
    return MakeAllocator(name, load(name).allocator)


@pytest.mark.parametrize(("name", "num_seqs"), [("paged", MOST_SEQS), ("contiguous-max", 4)])
def test_as_many_prompts_are_admitted_as_fit_up_to_a_limit(name, num_seqs):
    prompts = admissible(make(name), 16)
    assert len(prompts) == num_seqs
    assert len({tuple(prompt) for prompt in prompts.values()}) == num_seqs
    require_disjoint_tables(filled(make(name), 16, prompts), prompts)


@pytest.mark.parametrize(
    ("tables", "num_free", "complaint"),
    [
        ({0: [0, 1], 1: [1, 2]}, 4, "block 1 of sequence 1 is outside the pool or owned twice"),
        ({0: [0, 4], 1: [1, 2]}, 4, "block 4 of sequence 0 is outside"),
        ({0: [0], 1: [1, 2]}, 4, "1 blocks can't hold the 20 tokens"),
        ({0: [0, 1], 1: [2, 3]}, 3, "3 of 4 blocks are free after every sequence was freed"),
    ],
)
def test_blocks_that_are_shared_missing_or_lost_are_found(tables, num_free, complaint):
    pool = SimpleNamespace(
        block_size=16,
        num_blocks=4,
        pool_blocks=4,
        block_table=tables.__getitem__,
        free=lambda seq: None,
        num_free_blocks=lambda: num_free,
    )
    with pytest.raises(LawBroken, match=complaint):
        require_disjoint_tables(pool, dict.fromkeys(tables, [0] * 20))


def prepared(preparation, names, group, operation, batch=64):
    cell = HostCell(group, operation, 16, batch)
    return dict(preparation({name: make(name) for name in names}).prepare([(name, cell) for name in names]))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_of_an_allocator_is_timed_for_each_sequence(operation):
    ((entrant, ready),) = prepared(AllocatorCalls, ["paged-python"], "allocator", operation).items()
    assert isinstance(ready, Ready)
    timings = race({entrant: ready.contestant}, HostClock(), seconds=0)
    figures = ready.figures(timings)
    assert figures["batch"] == MOST_SEQS
    assert figures["median_ms"] == pytest.approx(1e3 * timings[entrant].median_seconds / MOST_SEQS)


@pytest.mark.parametrize("operation", STEPS)
def test_the_tensors_of_a_step_are_timed_a_step(operation):
    ((entrant, ready),) = prepared(StepContest, ["paged-python"], "step_tensors", operation, batch=4).items()
    timings = race({entrant: ready.contestant}, HostClock(), seconds=0)
    assert ready.figures(timings)["us_per_step"] == pytest.approx(1e6 * timings[entrant].median_seconds / 16)


def test_step_tensors_that_are_not_those_of_the_tables_are_not_believed():
    ((_, ready),) = prepared(StepContest, ["paged-python"], "step_tensors", "append_step", batch=4).items()
    batch = ready.contestant.prepare(None)
    ready.contestant.call(batch)
    batch.tensors.slot_mapping[0] += 1
    with pytest.raises(LawBroken, match="row 0 of a step"):
        ready.contestant.check(0, None)


@pytest.mark.parametrize(
    ("preparation", "name", "group", "operation", "reason"),
    [
        (AllocatorCalls, "contiguous-max", "allocator", "fork", "has no fork"),
        (AllocatorCalls, "contiguous-max", "allocator", "prefix_hit", "has no cached_prefix"),
        (StepContest, "textbook", "step_tensors", "append_step", "has no append_step"),
        (StepContest, "contiguous-max", "step_tensors", "append and fill", "admits fewer than 64 sequences"),
    ],
)
def test_what_an_allocator_does_not_do_is_told(preparation, name, group, operation, reason):
    (told,) = prepared(preparation, [name], group, operation).values()
    assert isinstance(told, NotTimed)
    assert reason in told.reason
