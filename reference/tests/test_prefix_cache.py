"""Prefix caching in the reference allocator: what is found, when, and what is given up first."""

import copy

import pytest

from kvproof_reference.allocator import ReferenceAllocator

B = 4


def made(num_blocks=8, block_size=B):
    return ReferenceAllocator(num_blocks, block_size)


def admitted(allocator, seq, tokens, key=()):
    """Allocate, write, commit: what a prefill does."""
    cached = allocator.allocate(seq, tokens, key)
    allocator.commit(seq)
    return cached


def state_of(allocator):
    state = copy.deepcopy(vars(allocator))
    state["order"] = [list(allocator.empty), list(allocator.cached), list(allocator.findable)]
    return state


def test_a_block_is_findable_only_after_commit_and_only_when_complete():
    allocator = made()
    allocator.allocate("a", range(B + 2))
    assert allocator.cached_prefix(range(3 * B)) == 0
    allocator.commit("a")
    assert allocator.cached_prefix(range(3 * B)) == B
    allocator.append("a", range(B + 2, 2 * B))
    assert allocator.cached_prefix(range(3 * B)) == B, "handed out, not written"
    allocator.commit("a")
    assert allocator.cached_prefix(range(3 * B)) == 2 * B
    assert allocator.check() == []


@pytest.mark.parametrize("num_tokens", [1, B - 1, B, B + 1, 2 * B, 2 * B + 1])
def test_a_full_hit_leaves_at_least_one_token_to_compute(num_tokens):
    allocator = made()
    admitted(allocator, "a", range(3 * B))
    assert admitted(allocator, "b", range(num_tokens)) == (num_tokens - 1) // B * B
    assert admitted(allocator, "c", range(3 * B + 1)) == 3 * B, "the chain can still be extended"
    assert allocator.check() == []


def test_a_hit_shares_the_blocks_and_revives_those_that_nobody_held():
    allocator = made()
    admitted(allocator, "a", range(2 * B))
    table = allocator.block_table("a")
    admitted(allocator, "b", range(2 * B + 1))
    assert allocator.block_table("b")[:2] == table
    allocator.free("a")
    allocator.free("b")
    assert allocator.num_free_blocks() == 8
    assert admitted(allocator, "c", range(2 * B + 1)) == 2 * B
    assert allocator.block_table("c")[:2] == table
    assert allocator.check() == []


@pytest.mark.parametrize(
    ("tokens", "key"),
    [
        ([9, 1, 2, 3, 4], ()),
        ([0, 1, 2, 3 + 2**32, 4], ()),
        ([0, 1, 2, 3 + 256, 4], ()),
        ([0, 1, 2, 3, 4], ("salt",)),
        ([0, 1, 2, 3, 4], ("adapter", 2)),
    ],
    ids=["token", "high bits", "beyond a byte", "salt", "adapter"],
)
def test_another_token_or_key_is_no_hit(tokens, key):
    allocator = made()
    admitted(allocator, "a", range(2 * B), ("adapter", 1) if "adapter" in key else ())
    assert allocator.cached_prefix(tokens, key) == 0


def test_equal_blocks_behind_different_prefixes_are_kept_apart_and_both_found():
    allocator = made()
    prompts = [[*range(first, first + B), *range(50, 50 + B), 1] for first in (0, 9)]
    assert [admitted(allocator, seq, prompt) for seq, prompt in enumerate(prompts)] == [0, 0]
    assert [allocator.cached_prefix(prompt) for prompt in prompts] == [2 * B, 2 * B]


WEAK_HASHES = {
    "constant": lambda parent, tokens, key, size: 1,
    "four bits": lambda parent, tokens, key, size: hash((parent, tokens, key, size)) % 16,
    "without the parent": lambda parent, tokens, key, size: hash((tokens, key)),
    "without the key": lambda parent, tokens, key, size: hash((parent, tokens)),
    "without the tokens": lambda parent, tokens, key, size: hash((parent, key)),
}


@pytest.mark.parametrize("weakness", WEAK_HASHES)
def test_with_colliding_hashes_a_hit_still_has_equal_contents(monkeypatch, weakness):
    for module in ("allocator", "invariants"):
        monkeypatch.setattr(f"kvproof_reference.{module}.chain_hash", WEAK_HASHES[weakness])
    allocator = made(128)
    prompts = [
        (key, [first, 1, 2, 3, second, 5, 6, 7, 8]) for first in range(4) for second in range(4) for key in ("", "salt")
    ]
    for seq, (key, prompt) in enumerate(prompts):
        cached = admitted(allocator, seq, prompt, key)
        for block in allocator.block_table(seq)[: cached // B]:
            owners = [other for other in range(seq) if block in allocator.block_table(other)]
            assert owners
            assert all(prompts[other][0] == key and prompts[other][1][:cached] == prompt[:cached] for other in owners)
        assert allocator.check() == []


def test_two_equal_prompts_of_one_step_end_in_one_set_of_blocks():
    allocator = made()
    for seq in "ab":
        assert allocator.allocate(seq, range(2 * B)) == 0
    assert allocator.num_free_blocks() == 4
    allocator.commit("a")
    allocator.commit("b")
    assert allocator.block_table("a") == allocator.block_table("b")
    assert allocator.num_free_blocks() == 6
    assert allocator.check() == []


def test_blocks_without_contents_go_first_then_the_least_recently_used_and_tails_before_heads():
    allocator = made(6)
    admitted(allocator, "old", [1, 1, 1, 1, 2, 2, 2, 2])
    admitted(allocator, "new", [3, 3, 3, 3, 4, 4, 4, 4])
    old, new = allocator.block_table("old"), allocator.block_table("new")
    allocator.free("old")
    allocator.free("new")
    taken = []
    for seq in range(6):
        allocator.allocate(seq, [seq + 10])
        taken += allocator.block_table(seq)
        assert allocator.check() == []
    assert taken[2:] == [old[1], old[0], new[1], new[0]]


def test_a_hit_renews_a_block():
    allocator = made(4)
    for seq in "ab":
        admitted(allocator, seq, [ord(seq)] * B)
        allocator.free(seq)
    allocator.allocate("again", [ord("a")] * B + [0])
    allocator.free("again")
    allocator.allocate("big", range(3 * B))
    assert allocator.cached_prefix([ord("a")] * B + [0]) == B
    assert allocator.cached_prefix([ord("b")] * B + [0]) == 0


def test_hit_blocks_in_the_free_queue_are_not_capacity_as_well():
    allocator = made(3)
    admitted(allocator, "a", range(2 * B))
    allocator.free("a")
    before = state_of(allocator)
    with pytest.raises(MemoryError, match=r"needs 2 blocks, 1 of 3 are free"):
        allocator.allocate("b", range(4 * B))
    assert state_of(allocator) == before
    assert allocator.allocate("c", range(3 * B)) == 2 * B


def test_reset_forgets_referenced_blocks_too_and_what_was_live_publishes_no_more():
    allocator = made()
    admitted(allocator, "live", range(2 * B))
    admitted(allocator, "gone", range(50, 50 + B))
    allocator.free("gone")
    allocator.reset_prefix_cache()
    allocator.append("live", range(B))
    allocator.commit("live")
    allocator.fork("live", "child")
    allocator.commit("child")
    assert allocator.cached_prefix(range(3 * B)) == allocator.cached_prefix(range(50, 60)) == 0
    assert admitted(allocator, "fresh", range(2 * B + 1)) == 0
    assert allocator.cached_prefix(range(3 * B)) == 2 * B
    assert allocator.check() == []


def test_a_findable_block_that_is_cut_and_rewritten_is_no_longer_found_nor_is_what_lay_behind_it():
    allocator = made(4)
    admitted(allocator, "s", range(3 * B))
    allocator.truncate("s", B + 1)
    assert allocator.cached_prefix(range(3 * B + 1)) == 3 * B, "nothing is overwritten yet"
    assert allocator.append("s", [99]) == []
    assert allocator.cached_prefix(range(3 * B + 1)) == B
    assert allocator.check() == []
    allocator.append("s", [99] * (B - 2))
    allocator.commit("s")
    assert allocator.cached_prefix([*range(B + 1), *[99] * B]) == 2 * B
    assert allocator.check() == []


def test_rolling_back_needs_no_block_that_a_run_without_speculation_does_not_need():
    allocator = made(2)
    admitted(allocator, "s", range(2 * B))
    allocator.truncate("s", 2 * B - 1)
    assert allocator.append("s", [99]) == []
    assert allocator.check() == []
