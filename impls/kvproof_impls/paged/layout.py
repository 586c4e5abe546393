"""What the allocator remembers, as arrays of records: 32 bytes a block, and 4 a token slot for the prefix cache.

A *name* of a block is the node of its parent and its tokens. A *node* is a pair (block, generation): the content that
``block`` had when it was published for the ``generation``-th time, so that a block evicted and published anew is
another node, and nothing that was published below the old one is found below the new one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LARGEST = 2**31 - 1
"""Of what is kept as int32."""

NONE = -1
"""No block: the end of a list."""

UNNAMED, ALIAS = -2, -3
"""Instead of the next block in a bucket. Unnamed: nothing is known of the content. Alias: another block bears the name
of this content, and ``parent`` and ``parent_generation`` are its node."""

CUT = 2
"""Of a sequence that was cut back inside a block with fields: from here on ``publishes`` tells which are left."""

LRU, FIFO, LEAF, ALL = range(4)
EVICTION = {"lru": LRU, "fifo": FIFO, "leaf": LEAF, "all": ALL}
"""Which of the blocks that nobody owns go first.

lru   those without content, last freed first; then cached ones, least recently used first, children before parents
fifo  in the order in which they were freed, with content or without (nano-vllm)
leaf  those without content; then the least recently used end of a chain, with all of its chain that no other prefix
      shares (SGLang)
all   those without content; when there are none left, everything cached is forgotten (transformers)
"""

BLOCK = np.dtype(
    [
        ("references", np.int32),  # sequences whose table names the block
        ("next", np.int32),  # in its free list
        ("previous", np.int32),
        ("generation", np.int32),  # how often it was published
        ("parent", np.int32),  # the node below which it bears its name; at the root -1 - number of its fields
        ("parent_generation", np.int32),
        ("chain", np.int32),  # next block in the same bucket of names; or UNNAMED, ALIAS
    ]
)

SEQUENCE = np.dtype(
    [
        ("next_slot", np.int64),  # where the next token goes while there is room
        ("stamp", np.int64),  # changes with the table
        ("base", np.int64),  # changes with the table unless a block is only added to it
        ("length", np.int32),  # tokens
        ("room", np.int32),  # slots of the last block, past the last token, known to be the sequence's own
        ("num_blocks", np.int32),  # in its table
        ("num_known", np.int32),  # leading blocks whose node is known
        ("num_gone", np.int32),  # leading blocks given back because no query sees them any more
        ("parent", np.int32),  # the node of the last known block, or the root: its next block is published below it
        ("parent_generation", np.int32),
        ("root", np.int32),  # -1 - number of its fields (salt, adapter)
        ("publishes", np.int32),  # 0: nothing any more; CUT + n: its last block bears fields n once it is written
        ("mark", np.int32),  # the last check for rows that come twice
    ]
)

POOL = np.dtype(
    [
        ("seed", np.uint64),
        ("clock", np.int64),  # the last stamp given
        ("num_evicted", np.int64),
        ("block_size", np.int32),
        ("num_blocks", np.int32),
        ("window", np.int32),  # visible positions, 0 without a window
        ("eviction", np.int32),
        ("blank", np.int32),  # last freed block without content
        ("num_blank", np.int32),
        ("oldest", np.int32),  # least recently used of the findable blocks that nobody owns
        ("newest", np.int32),
        ("num_evictable", np.int32),
        ("longest", np.int32),  # blocks of the longest table there ever was
        ("marks", np.int32),  # checks for rows that come twice
    ]
)


class State(NamedTuple):
    """Everything that the compiled functions read and write."""

    pool: Any
    """[1] POOL"""
    blocks: Any
    """[pool_blocks] BLOCK"""
    buckets: Any
    """[a power of two up to num_blocks] int32: first block whose name hashes there"""
    contents: Any
    """[pool_blocks * block_size] int32: the token in each slot; [0] without a prefix cache"""
    fields: Any
    """[pool_blocks] int32: number of the fields of each block beside its tokens, such as images; [0] until there are"""
    num_children: Any
    """[pool_blocks] int32: blocks named below each, for eviction by leaf alone; else [0]"""
    sequences: Any
    """[max_num_seqs] SEQUENCE"""
    tables: Any
    """[max_num_seqs, max_blocks] int32"""


def make_state(
    num_blocks: int, block_size: int, num_reserved: int, eviction: int, window: int, caches: bool, seed: int
) -> State:
    """A pool in which every block is free, blank, and handed out from block 0 on."""
    pool_blocks = num_blocks + num_reserved
    pool, blocks = np.zeros(1, POOL), np.zeros(pool_blocks, BLOCK)
    for field, value in (("seed", seed), ("block_size", block_size), ("num_blocks", num_blocks)):
        pool[field] = value
    pool["window"], pool["eviction"] = window, eviction
    pool["oldest"] = pool["newest"] = NONE
    pool["num_blank"] = num_blocks
    blocks["chain"] = UNNAMED
    blocks["next"][:num_blocks] = np.arange(1, num_blocks + 1)
    blocks["next"][num_blocks - 1] = NONE
    return State(
        pool,
        blocks,
        np.full(1 << (num_blocks.bit_length() - 1), NONE, np.int32),
        np.zeros(pool_blocks * block_size if caches else 0, np.int32),
        np.zeros(0, np.int32),
        np.zeros(pool_blocks if eviction == LEAF else 0, np.int32),
        np.zeros(0, SEQUENCE),
        np.zeros((0, 1), np.int32),
    )


def grown(state: State, num_seqs: int, max_blocks: int) -> State:
    """``state`` with room for so many sequences with so many blocks each, what it held kept."""
    sequences = np.zeros(num_seqs, SEQUENCE)
    sequences[: len(state.sequences)] = state.sequences
    tables = np.zeros((num_seqs, max_blocks), np.int32)
    rows, columns = state.tables.shape
    tables[:rows, :columns] = state.tables
    return state._replace(sequences=sequences, tables=tables)
