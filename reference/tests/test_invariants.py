"""Each invariant of the allocator is broken by hand once, and is the one to say so."""

import pytest

from kvproof_reference.allocator import ReferenceAllocator
from kvproof_reference.invariants import INVARIANTS

B = 4


def a_lived_in_pool():
    """Live and shared blocks, cached chains, blocks that are free."""
    allocator = ReferenceAllocator(12, B)
    for seq, tokens in {"gone": range(40, 40 + 2 * B), "live": range(2 * B + 2), "other": [7]}.items():
        allocator.allocate(seq, tokens)
        allocator.commit(seq)
    allocator.fork("live", "child")
    allocator.free("gone")
    return allocator


def lose_a_block(a):
    a.empty.popitem()


def count_a_reference_too_many(a):
    a.blocks[a.sequences["live"].table[0]].num_references += 1


def hold_a_block_twice(a):
    state = a.sequences["other"]
    state.table.append(state.table[0])


def keep_a_block_too_many(a):
    a.sequences["live"].tokens.clear()


def queue_a_held_block(a):
    a.empty[a.sequences["live"].table[0]] = None


def count_free_blocks_wrongly(a):
    a.num_free_blocks = lambda: 3


def leave_a_hash_in_the_map(a):
    a.blocks[a.sequences["live"].table[1]].unpublish()


def publish_a_partial_block(a):
    block = a.blocks[a.sequences["other"].table[0]]
    a.findable[123] = block.id
    block.publish(123, None, (7,), ())


def forget_a_parent_alone(a):
    a._forget(a.sequences["live"].table[0])


def evict_heads_first(a):
    a.cached.move_to_end(next(iter(a.cached)))


def overwrite_a_findable_block(a):
    a.sequences["live"].tokens[1] = 99


def append_in_place_to_a_shared_block(a):
    a.sequences["live"].tokens.append(1)
    a.sequences["child"].tokens.append(2)


def count_what_was_never_published(a):
    a.sequences["live"].num_findable = 3


BREAKAGES = {
    "conservation": lose_a_block,
    "reference-counts": count_a_reference_too_many,
    "no-block-twice": hold_a_block_twice,
    "table-length": keep_a_block_too_many,
    "queues": queue_a_held_block,
    "free-count": count_free_blocks_wrongly,
    "map-and-blocks": leave_a_hash_in_the_map,
    "findable-complete": publish_a_partial_block,
    "chains": forget_a_parent_alone,
    "eviction-order": evict_heads_first,
    "contents": overwrite_a_findable_block,
    "owners-agree": append_in_place_to_a_shared_block,
    "published-prefix": count_what_was_never_published,
}


def test_every_invariant_has_a_name_of_its_own_a_sentence_and_a_breakage():
    assert [invariant.name for invariant in INVARIANTS] == list(BREAKAGES)
    assert all(invariant.sentence.endswith(".") for invariant in INVARIANTS)


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_invariant_is_named(name):
    allocator = a_lived_in_pool()
    assert allocator.check() == []
    BREAKAGES[name](allocator)
    assert name in {line.split(":")[0] for line in allocator.check()}
