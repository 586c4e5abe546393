"""Free blocks: a stack of blank ones, and a queue of those that can still be found, from which a hit takes out of the
middle. All in constant time, but for evictions by leaf, which look for one."""

from __future__ import annotations

from kvproof_impls.paged.compiling import compiled
from kvproof_impls.paged.layout import ALL, FIFO, LEAF, NONE, UNNAMED, State
from kvproof_impls.paged.names import is_leaf, is_named, parent_of, unpublish


@compiled
def num_free(state: State) -> int:
    pool = state.pool[0]
    return pool.num_blank + pool.num_evictable


@compiled
def take(state: State) -> int:
    """A block that nobody owns, now owned once and blank. There must be one."""
    pool = state.pool[0]
    if pool.num_blank == 0:
        evict(state)
    block = pool.blank
    pool.blank = state.blocks[block].next
    pool.num_blank -= 1
    state.blocks[block].references = 1
    if state.fields.size > 0:
        state.fields[block] = 0
    return block


@compiled
def give_back(state: State, block: int) -> None:
    """One owner less. The last one's block goes to the queue when it can be found, or when all do."""
    blocks = state.blocks
    blocks[block].references -= 1
    if blocks[block].references > 0:
        return
    if not is_named(state, block):
        blocks[block].chain = UNNAMED  # an alias forgets what it is an alias of
        if state.pool[0].eviction != FIFO:
            push_blank(state, block)
            return
    append_evictable(state, block)


@compiled
def own(state: State, block: int) -> None:
    """One owner more, of a block that was found or forked."""
    if state.blocks[block].references == 0:
        remove_evictable(state, block)
    state.blocks[block].references += 1


@compiled
def evict(state: State) -> None:
    """Forget what at least one block holds, and make it blank."""
    eviction = state.pool[0].eviction
    if eviction == ALL:
        forget_evictable(state)
    elif eviction == LEAF:
        evict_leaf(state)
    else:
        blank(state, state.pool[0].oldest)


@compiled
def evict_leaf(state: State) -> None:
    """The end of a chain that was used least recently, and the chain up to where another prefix branches off."""
    block = state.pool[0].oldest
    while block != NONE and not is_leaf(state, block):
        block = state.blocks[block].next
    if block == NONE:  # every chain goes on in a live sequence
        blank(state, state.pool[0].oldest)
    while block != NONE and state.blocks[block].references == 0 and is_leaf(state, block):
        parent = parent_of(state, block)
        blank(state, block)
        block = parent


@compiled
def forget_evictable(state: State) -> None:
    """Make all blocks of the queue blank, so that the newest is handed out first."""
    while state.pool[0].num_evictable > 0:
        blank(state, state.pool[0].oldest)


@compiled
def blank(state: State, block: int) -> None:
    """From the queue to the stack, its content forgotten."""
    pool = state.pool[0]
    pool.num_evicted += is_named(state, block)
    remove_evictable(state, block)
    unpublish(state, block)
    push_blank(state, block)


@compiled
def push_blank(state: State, block: int) -> None:
    pool = state.pool[0]
    state.blocks[block].next = pool.blank if pool.num_blank > 0 else NONE
    pool.blank = block
    pool.num_blank += 1


@compiled
def append_evictable(state: State, block: int) -> None:
    pool, blocks = state.pool[0], state.blocks
    blocks[block].next, blocks[block].previous = NONE, pool.newest
    if pool.newest == NONE:
        pool.oldest = block
    else:
        blocks[pool.newest].next = block
    pool.newest = block
    pool.num_evictable += 1


@compiled
def remove_evictable(state: State, block: int) -> None:
    pool, blocks = state.pool[0], state.blocks
    before, after = blocks[block].previous, blocks[block].next
    if before == NONE:
        pool.oldest = after
    else:
        blocks[before].next = after
    if after == NONE:
        pool.newest = before
    else:
        blocks[after].previous = before
    pool.num_evictable -= 1
