"""An allocator's time is believed only when it handed out blocks of its own to each, and took all of them back."""

from types import SimpleNamespace

import pytest

from kvproof_impls.registry import load
from kvproof_suites.bench.test_allocator import MOST_SEQS, admissible, filled, require_disjoint_tables
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
