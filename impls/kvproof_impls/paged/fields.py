"""What names a prefix beside its tokens, as numbers: the key of a sequence (salt, adapter), and items such as images
whose placeholder tokens are alike. Equal fields get equal numbers, and no number is given twice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from kvproof_impls.paged_sizes import whole

Item = tuple[int, int, Hashable]
"""(position of its first token, number of tokens, identity)"""

NO_FIELDS = np.zeros(0, np.int32)
MANY = 1_024
"""As many numbers may be kept before it is worth looking which are still in use."""
SPENT = 2**30
"""Numbers given before all are given anew; arrays hold them as int32, and one prompt may take many."""


class Fields:
    """Numbers of fields, from 1 on; 0 is no field at all. Compared in full by Python, so that no two share one."""

    def __init__(self, num_blocks: int) -> None:
        self._numbers: dict[Any, int] = {}
        self._last = 0
        self._limit = self._least_limit = max(MANY, num_blocks // 16)  # to look takes a pass over the blocks

    @property
    def are_many(self) -> bool:
        """Whether ``keep`` should be called: keys come and go with tenants, and would pile up."""
        return len(self._numbers) > self._limit

    @property
    def are_spent(self) -> bool:
        """Whether to begin anew, once nothing that was named by these numbers can be found or published."""
        return self._last > SPENT

    def root(self, key: Hashable) -> int:
        """Stands for the parent of a first block: below 0, where no block's id is."""
        return -1 - (self._number(tagged_with_types(key)) if key != () else 0)

    def of_blocks(self, items: Sequence[Item], num_tokens: int, block_size: int) -> Any:
        """[blocks of num_tokens] int32: for each block the items that reach into it.

        Raises:
            ValueError: an item outside the tokens, or one whose place is no whole number.
        """
        reaching: dict[int, list[Item]] = {}
        for first, length, identity in items:
            first, length = whole("position of an item", first), whole("num_tokens of an item", length, 1)
            if first + length > num_tokens:
                raise ValueError(f"an item of {length} tokens at {first} lies outside the {num_tokens} tokens")
            for index in range(first // block_size, (first + length - 1) // block_size + 1):
                reaching.setdefault(index, []).append((first, length, identity))
        numbers = np.zeros(-(-num_tokens // block_size), np.int32)
        for index, found in reaching.items():
            numbers[index] = self._number(tagged_with_types(tuple(found)))
        return numbers

    def cut(self, number: int, num_tokens: int) -> int:
        """Of a block whose fields have ``number``, when ``num_tokens`` tokens are left of its sequence: what is written
        behind them belongs to none of its items."""
        items = next(entry for entry, known in self._numbers.items() if known == number)
        if items[-1][0] is int:  # cut before
            *items, (_, before) = items
            num_tokens = min(num_tokens, before)
        kept = [item for item in items if item[0][1] < num_tokens]
        if any(item[0][1] + item[1][1] > num_tokens for item in kept):
            kept.append((int, num_tokens))
        return self._number(tuple(kept)) if kept else 0

    def keep(self, numbers: set[int]) -> None:
        """Forget all other numbers: nothing that is findable or alive bears them."""
        self._numbers = {entry: number for entry, number in self._numbers.items() if number in numbers}
        self._limit = max(self._least_limit, 2 * len(self._numbers))

    def _number(self, tagged: Any) -> int:
        number = self._numbers.get(tagged)
        if number is None:
            self._last += 1
            number = self._numbers[tagged] = self._last
        return number


def tagged_with_types(value: Hashable) -> Hashable:
    """``1``, ``1.0`` and ``True`` are equal to Python, and are different keys."""
    return tuple(map(tagged_with_types, value)) if isinstance(value, tuple) else (type(value), value)
