"""What our allocator promises beyond the laws: which blocks it picks, what it keeps cached, what an append costs."""

from __future__ import annotations

import array
from typing import Any

import pytest

from kvproof_impls.contract import BlockAllocator


def filled(allocator: Any, seq: str, tokens: list[int]) -> None:
    allocator.allocate(seq, tokens)
    allocator.commit(seq)


def test_it_has_the_shape_of_the_contract(our_paged: Any) -> None:
    assert isinstance(our_paged(4, 16), BlockAllocator)


def test_800_prompt_tokens_and_4_samples_of_150_take_90_blocks_of_16(our_paged: Any) -> None:
    allocator = our_paged(200, 16)
    allocator.allocate("a", list(range(800)))
    copies = [allocator.fork("a", child) for child in "bcd"]
    for seq in "abcd":
        copies += [allocator.append(seq, [token]) for token in range(150)]
    assert not any(copies)
    assert 200 - allocator.num_free_blocks() == 90


def test_a_diverging_write_after_200_shared_blocks_copies_one(our_paged: Any) -> None:
    allocator = our_paged(256, 16)
    allocator.allocate("a", list(range(200 * 16 - 1)))
    allocator.fork("a", "b")
    before = allocator.num_free_blocks()
    copies = allocator.append("b", [7])
    assert len(copies) == 1
    assert before - allocator.num_free_blocks() == 1


def test_a_prompt_of_13_blocks_does_not_fit_in_8(our_paged: Any) -> None:
    allocator = our_paged(8, 16)
    assert not allocator.can_allocate(200)
    assert allocator.can_allocate(100)
    with pytest.raises(MemoryError, match=r"13 blocks.* 8 of 8 free"):
        allocator.allocate("a", list(range(200)))


def test_blocks_without_content_are_handed_out_before_cached_ones(our_paged: Any) -> None:
    allocator = our_paged(4, 2)
    filled(allocator, "a", [1, 2, 3, 4])
    allocator.free("a")
    allocator.allocate("b", [5, 6, 7, 8])
    assert allocator.cached_prefix([1, 2, 3, 4, 0]) == 4


def test_the_least_recently_used_prefix_is_evicted_first_and_from_its_end(our_paged: Any) -> None:
    allocator = our_paged(4, 2)
    filled(allocator, "old", [1, 1, 2, 2])
    filled(allocator, "new", [3, 3, 4, 4])
    allocator.free("old")
    allocator.free("new")
    allocator.allocate("c", [9])
    assert allocator.cached_prefix([1, 1, 2, 2, 0]) == 2
    assert allocator.cached_prefix([3, 3, 4, 4, 0]) == 4


def test_a_hit_makes_a_prefix_recent_again(our_paged: Any) -> None:
    allocator = our_paged(4, 2)
    filled(allocator, "a", [1, 1])
    filled(allocator, "b", [2, 2])
    allocator.free("a")
    allocator.free("b")
    allocator.allocate("again", [1, 1, 5])
    allocator.free("again")
    allocator.allocate("c", [9] * 6)
    assert allocator.cached_prefix([1, 1, 0]) == 2
    assert allocator.cached_prefix([2, 2, 0]) == 0


def test_a_block_of_a_sequence_that_was_rolled_back_is_forgotten_when_it_is_written_again(our_paged: Any) -> None:
    allocator = our_paged(4, 2)
    filled(allocator, "a", [1, 2])
    allocator.truncate("a", 1)
    assert allocator.cached_prefix([1, 2, 0]) == 2
    assert not allocator.append("a", [3])
    assert allocator.cached_prefix([1, 2, 0]) == 0


def test_a_block_that_is_published_again_below_another_parent_loses_its_old_name(our_paged: Any) -> None:
    allocator = our_paged(5, 1)
    allocator.allocate("first", [1])
    allocator.allocate("twin", [1, 2])  # its first block doubles that of "first", which is published
    allocator.commit("first")
    allocator.fork("twin", "late")
    allocator.commit("twin")
    allocator.free("first")
    allocator.allocate("pressure", [7, 8, 9])  # evicts the cached one
    allocator.commit("late")
    assert allocator.cached_prefix([1, 2, 0]) == 2
    allocator.reset_prefix_cache()
    assert allocator.cached_prefix([1, 2, 0]) == 0


def test_reserved_room_is_used_by_append_and_given_back_by_truncate(our_paged: Any) -> None:
    allocator = our_paged(8, 4)
    allocator.allocate("a", [1, 2, 3])
    allocator.reserve("a", 8)
    assert len(allocator.block_table("a")) == 3
    assert not allocator.append("a", [4, 5])
    assert len(allocator.block_table("a")) == 3
    allocator.truncate("a", 5)
    assert len(allocator.block_table("a")) == 2


def test_a_fork_does_not_share_the_reserved_blocks(our_paged: Any) -> None:
    allocator = our_paged(8, 4)
    allocator.allocate("a", [1, 2, 3])
    allocator.reserve("a", 8)
    allocator.fork("a", "b")
    assert len(allocator.block_table("b")) == 1
    assert len(allocator.append("a", [4])) == 1


def test_arrays_and_tuples_are_tokens_too(our_paged: Any) -> None:
    allocator = our_paged(8, 2)
    allocator.allocate("a", array.array("i", [1, 2, 3]))
    allocator.append("a", (4,))
    allocator.commit("a")
    assert allocator.cached_prefix([1, 2, 3, 4, 5]) == 4


@pytest.mark.parametrize("shape", [(0, 16), (-1, 16), (4, 0)])
def test_a_pool_of_nothing_is_refused(our_paged: Any, shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        our_paged(*shape)


def test_what_stands_behind_a_placeholder_tells_prompts_apart(our_paged: Any) -> None:
    allocator, prompt = our_paged(8, 2), [1, 99, 99, 4, 5]
    allocator.allocate("a", prompt, (), ((1, 2, "cat"),))
    allocator.commit("a")
    assert allocator.cached_prefix(prompt, (), ((1, 2, "cat"),)) == 4
    assert allocator.cached_prefix(prompt, (), ((1, 2, "dog"),)) == 0
    assert allocator.cached_prefix(prompt) == 0


def test_an_item_outside_the_prompt_is_refused(our_paged: Any) -> None:
    with pytest.raises(ValueError, match="item of 2 tokens at 2 lies outside the 3 tokens"):
        our_paged(8, 2).allocate("a", [1, 2, 3], (), ((2, 2, "cat"),))


def test_items_come_back_from_the_host_with_their_sequence(our_paged: Any) -> None:
    allocator, prompt = our_paged(8, 2), [1, 99, 99, 4, 5]
    allocator.allocate("a", prompt, (), ((1, 2, "cat"),))
    allocator.swap_out("a")
    allocator.swap_in("a")
    allocator.commit("a")
    assert allocator.cached_prefix(prompt, (), ((1, 2, "cat"),)) == 4
    assert allocator.cached_prefix(prompt) == 0


def test_a_sequence_that_comes_back_after_a_preemption_is_no_hit(our_paged: Any) -> None:
    allocator = our_paged(8, 2)
    filled(allocator, "a", [1, 2, 3, 4, 5])
    allocator.preempt("a")
    assert allocator.allocate("a", [1, 2, 3, 4, 5, 6]) == 4
    counters = allocator.counters
    assert (counters.num_prompt_tokens, counters.num_hit_tokens, counters.hit_rate) == (5, 0, 0)
    assert (counters.num_readmitted_tokens, counters.num_recomputed_tokens, counters.num_preemptions) == (6, 2, 1)


def test_a_preempted_sequence_that_is_given_up_is_forgotten(our_paged: Any) -> None:
    allocator = our_paged(8, 2)
    filled(allocator, "a", [1, 2, 3])
    allocator.preempt("a")
    allocator.free("a")
    with pytest.raises(KeyError):
        allocator.free("a")
    allocator.allocate("a", [1, 2, 3])
    assert allocator.counters.num_readmitted_tokens == 0


def test_a_watermark_keeps_blocks_from_admissions_while_others_live(our_paged: Any) -> None:
    allocator = our_paged(10, 1, watermark=0.2)
    assert allocator.can_allocate(10)
    allocator.allocate("a", [1] * 5)
    assert allocator.can_allocate(3)
    assert not allocator.can_allocate(4)
    with pytest.raises(MemoryError):
        allocator.allocate("b", [2] * 4)
    allocator.append("a", [1] * 5)  # growth may use what is kept
    assert allocator.num_free_blocks() == 0


@pytest.mark.parametrize(
    ("eviction", "kept"),
    [("lru", (3, 2)), ("fifo", (3, 2)), ("leaf", (0, 2)), ("all", (0, 0))],
)
def test_policies_differ_in_what_a_little_pressure_costs(our_paged: Any, eviction: str, kept: tuple[int, int]) -> None:
    """Of two finished prompts of 4 and 2 blocks the older loses its end, all of itself, or both are lost."""
    allocator = our_paged(6, 1, eviction=eviction)
    prompts = {"old": [1, 2, 3, 4], "new": [7, 8]}
    for seq, tokens in prompts.items():
        filled(allocator, seq, tokens)
    for seq in prompts:
        allocator.free(seq)
    allocator.allocate("pressure", [9])
    assert tuple(allocator.cached_prefix([*tokens, 0]) for tokens in prompts.values()) == kept


def test_an_unknown_eviction_is_refused_with_those_that_are_known(our_paged: Any) -> None:
    with pytest.raises(ValueError, match="'mru' is unknown; known are lru, fifo, leaf, all"):
        our_paged(4, 4, eviction="mru")


def test_without_prefix_caching_nothing_is_found(our_paged: Any) -> None:
    allocator = our_paged(4, 2, prefix_caching=False)
    filled(allocator, "a", [1, 2, 3])
    assert allocator.cached_prefix([1, 2, 3]) == 0
