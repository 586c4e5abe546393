"""The reference allocator: who holds which block, what is shared, and that failures change nothing."""

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


@pytest.mark.parametrize("num_tokens", [0, 1, B - 1, B, B + 1, 2 * B])
def test_a_table_has_one_block_for_each_started_block_of_tokens(num_tokens):
    allocator = made()
    assert allocator.allocate("s", range(num_tokens)) == 0
    table = allocator.block_table("s")
    assert len(table) == len(set(table)) == -(-num_tokens // B)
    assert allocator.num_free_blocks() == 8 - len(table)
    assert allocator.check() == []


def test_slots_follow_the_block_table():
    allocator = made()
    allocator.allocate("filler", range(3))
    allocator.allocate("s", range(10))
    table = allocator.block_table("s")
    assert [allocator.slot_index("s", p) for p in range(10)] == [table[p // B] * B + p % B for p in range(10)]


def test_a_prompt_of_whole_blocks_grows_by_one_block_at_the_first_decode_step():
    allocator = made()
    allocator.allocate("s", range(2 * B))
    lengths = []
    for token in range(B + 1):
        assert allocator.append("s", [token]) == []
        lengths.append(len(allocator.block_table("s")))
    assert lengths == [3] * B + [4]
    assert allocator.check() == []


def test_one_append_may_cross_several_blocks():
    allocator = made()
    allocator.allocate("s", range(3))
    assert allocator.append("s", range(2 * B)) == []
    assert len(allocator.block_table("s")) == 3


def test_freed_blocks_can_be_handed_out_at_once():
    allocator = made(2)
    allocator.allocate("a", range(2 * B))
    allocator.free("a")
    allocator.allocate("b", range(2 * B))
    assert allocator.num_free_blocks() == 0
    assert allocator.check() == []


@pytest.mark.parametrize("num_tokens", [0, 1, B, 3 * B, 3 * B + 1, 100])
def test_can_allocate_tells_what_allocate_does(num_tokens):
    allocator = made(4)
    allocator.allocate("other", [1])
    promised = allocator.can_allocate(num_tokens)
    if promised:
        allocator.allocate("s", range(num_tokens))
    else:
        with pytest.raises(MemoryError):
            allocator.allocate("s", range(num_tokens))


@pytest.mark.parametrize(
    ("num_tokens", "num_copies"), [(B, 0), (B + 1, 1), (2 * B - 1, 1), (2 * B, 0)], ids=["0", "1", "B-1", "0 again"]
)
def test_a_fork_copies_only_when_a_partly_filled_shared_block_is_written(num_tokens, num_copies):
    allocator = made()
    allocator.allocate("parent", range(num_tokens))
    assert allocator.fork("parent", "child") == []
    before = allocator.block_table("parent")
    assert allocator.block_table("child") == before

    copies = allocator.append("child", [77])

    assert len(copies) == num_copies
    assert allocator.block_table("parent") == before
    if copies:
        assert copies == [(before[-1], allocator.block_table("child")[-1])]
    assert allocator.append("parent", [78]) == [], "the last owner writes in place"
    assert allocator.slot_index("parent", num_tokens) != allocator.slot_index("child", num_tokens)
    assert allocator.check() == []


def test_of_n_forks_all_but_the_last_writer_copy():
    allocator = made()
    allocator.allocate(0, range(B + 2))
    for child in (1, 2, 3):
        allocator.fork(0, child)
    assert [len(allocator.append(seq, [seq])) for seq in (2, 0, 3, 1)] == [1, 1, 1, 0]
    assert allocator.check() == []


def test_a_shared_block_outlives_the_sequence_that_took_it():
    allocator = made(2)
    allocator.allocate("parent", range(B))
    allocator.fork("parent", "child")
    allocator.free("parent")
    assert allocator.num_free_blocks() == 1
    allocator.free("child")
    assert allocator.num_free_blocks() == 2
    assert allocator.check() == []


@pytest.mark.parametrize("num_tokens", [0, 1, B - 1, B, B + 1, 2 * B + 1])
def test_truncate_gives_back_the_blocks_past_the_cut(num_tokens):
    allocator = made()
    allocator.allocate("s", range(2 * B + 1))
    allocator.truncate("s", num_tokens)
    assert len(allocator.block_table("s")) == -(-num_tokens // B)
    with pytest.raises(ValueError, match="position"):
        allocator.slot_index("s", num_tokens)
    assert allocator.check() == []


def test_truncate_into_a_shared_block_stays_copy_on_write():
    allocator = made()
    allocator.allocate("parent", range(2 * B))
    allocator.fork("parent", "child")
    allocator.truncate("child", B + 1)
    shared = allocator.block_table("parent")[-1]
    copies = allocator.append("child", [99])
    assert copies == [(shared, allocator.block_table("child")[-1])]
    assert allocator.block_table("parent")[-1] == shared
    assert allocator.check() == []


FAILURES = {
    "allocate a duplicate": (KeyError, lambda a: a.allocate("s", [1])),
    "allocate too much": (MemoryError, lambda a: a.allocate("t", range(100))),
    "allocate too much behind a hit": (MemoryError, lambda a: a.allocate("t", [*range(B), *range(100)])),
    "allocate half a token": (TypeError, lambda a: a.allocate("t", [1, 2.5])),
    "allocate with an unhashable key": (TypeError, lambda a: a.allocate("t", [1], [])),
    "append to nobody": (KeyError, lambda a: a.append("t", [1])),
    "append nothing to nobody": (KeyError, lambda a: a.append("t", [])),
    "append too much": (MemoryError, lambda a: a.append("s", range(100))),
    "append where only the copy is too much": (MemoryError, lambda a: a.append("child", [1])),
    "append a word": (TypeError, lambda a: a.append("s", [1, "two"])),
    "fork nobody": (KeyError, lambda a: a.fork("t", "u")),
    "fork onto a live sequence": (KeyError, lambda a: a.fork("s", "child")),
    "commit nobody": (KeyError, lambda a: a.commit("t")),
    "free nobody": (KeyError, lambda a: a.free("t")),
    "truncate nobody": (KeyError, lambda a: a.truncate("t", 0)),
    "truncate below zero": (ValueError, lambda a: a.truncate("s", -1)),
    "truncate beyond the end": (ValueError, lambda a: a.truncate("s", 7)),
    "table of nobody": (KeyError, lambda a: a.block_table("t")),
    "slot of nobody": (KeyError, lambda a: a.slot_index("t", 0)),
    "slot below zero": (ValueError, lambda a: a.slot_index("s", -1)),
    "slot beyond the end": (ValueError, lambda a: a.slot_index("s", 6)),
    "room for less than nothing": (ValueError, lambda a: a.can_allocate(-1)),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_named_and_changes_nothing(failure):
    error, act = FAILURES[failure]
    allocator = made(3)
    admitted(allocator, "s", range(B + 2))
    admitted(allocator, "rest", range(50, 50 + B))
    allocator.fork("s", "child")
    before = state_of(allocator)
    with pytest.raises(error):
        act(allocator)
    assert state_of(allocator) == before


def test_appending_nothing_is_no_operation():
    allocator = made(1)
    allocator.allocate("s", range(B))
    before = state_of(allocator)
    assert allocator.append("s", []) == []
    assert state_of(allocator) == before


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4)])
def test_an_impossible_pool_is_refused_by_name(num_blocks, block_size):
    with pytest.raises(ValueError, match="num_blocks must be" if num_blocks < 1 else "block_size must be"):
        ReferenceAllocator(num_blocks, block_size)
