"""How many blocks an operation takes at the least: with that many free it has no excuse to fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproof_suites.allocator.driver import Driver


def num_needed(driver: Driver, growth: Mapping[Hashable, int]) -> int:
    """Blocks for ``growth[seq]`` more tokens of each sequence: new ones, and copies of partial last blocks that are
    shared. Of the sequences that share a last block one may write in place, if all of them write."""
    num_grown, writers = 0, Counter[int]()
    for seq, num_tokens in growth.items():
        length, table = len(driver.live[seq].tags), driver.tables[seq]
        num_grown += max(0, driver.blocks_for(length + num_tokens) - len(table))
        if num_tokens and length % driver.block_size:
            writers[table[length // driver.block_size]] += 1
    holders = Counter(block for table in driver.tables.values() for block in table if block in writers)
    num_copies = sum(count - (count == holders[block]) for block, count in writers.items())
    return num_grown + num_copies
