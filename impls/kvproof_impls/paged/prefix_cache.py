"""The prefix cache as Python sees it: what is committed and found, and the numbers of fields that come and go."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from kvproof_impls.paged import entries
from kvproof_impls.paged.arrays import Arrays
from kvproof_impls.paged.fields import NO_FIELDS, Fields, Item
from kvproof_impls.paged.free_lists import forget_evictable
from kvproof_impls.paged.layout import CUT, NONE, UNNAMED, State
from kvproof_impls.paged.names import in_use
from kvproof_impls.paged.tokens import as_tokens


class PrefixCache(Arrays):
    """Publishing, look-up and forgetting; ``names`` is where it happens."""

    num_blocks: int
    pool_blocks: int
    block_size: int

    def __init__(self, state: State, num_seqs: int, max_blocks: int) -> None:
        self._rows: dict[Hashable, int] = {}
        self._fields = Fields(self.num_blocks)
        super().__init__(state, num_seqs, max_blocks)

    def commit(self, seq: Hashable) -> None:
        """All tokens of ``seq`` are written: publish its complete blocks. Raises KeyError when it is unknown."""
        entries.commit(self._places, self._rows[seq])

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = (), items: Sequence[Item] = ()) -> int:
        """How many leading tokens ``allocate`` would find cached now."""
        if not self._state.contents.size:
            return 0
        ids = as_tokens(tokens)
        self._tidy_fields()
        hits = np.empty(ids.size // self.block_size + 1, np.int32)
        fields = self._fields_of(items, ids.size) if items else NO_FIELDS
        return int(entries.find(self._places, ids, fields, self._fields.root(key), hits)) * self.block_size

    def reset_prefix_cache(self) -> None:
        """Forget all that was computed so far; live sequences go on, and publish no more."""
        state, num_evicted = self._state, self._state.pool["num_evicted"].copy()
        forget_evictable(state)
        state.pool["num_evicted"] = num_evicted
        state.blocks["chain"] = UNNAMED
        state.buckets.fill(NONE)
        state.num_children.fill(0)
        state.sequences["publishes"] = 0

    def _fields_of(self, items: Sequence[Item], num_tokens: int) -> Any:
        numbers = self._fields.of_blocks(items, num_tokens, self.block_size)
        if not self._state.fields.size:
            self._replace(self._state._replace(fields=np.zeros(self.pool_blocks, np.int32)))
        return numbers

    def _cut_fields(self, record: Any, row: int, num_tokens: int) -> None:
        """What is written behind ``num_tokens`` tokens belongs to no item any more; the last block may be shared, and
        is told at the next write."""
        if not self._state.fields.size or record["publishes"] == 0:
            return
        last, number = num_tokens // self.block_size, 0
        if num_tokens % self.block_size:
            number = int(self._state.fields[self._state.tables[row, last]])
            if record["publishes"] >= CUT and last == record["length"] // self.block_size:
                number = int(record["publishes"]) - CUT
        record["publishes"] = CUT + self._fields.cut(number, num_tokens) if number else 1

    def _tidy_fields(self) -> None:
        if self._fields.are_spent:
            self.reset_prefix_cache()
            self._fields = Fields(self.num_blocks)
        elif self._fields.are_many:
            self._fields.keep(self._numbers_in_use())

    def _numbers_in_use(self) -> set[int]:
        return in_use(self._state)
