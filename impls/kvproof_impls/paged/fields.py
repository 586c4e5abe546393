"""What names a prefix beside its tokens, as numbers: the key of a sequence (salt, adapter), and items such as images
whose placeholder tokens are alike. Equal fields get equal numbers, and no number is given twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

Item = tuple[int, int, Hashable]
"""(position of its first token, number of tokens, identity)"""

NO_FIELDS = np.zeros(0, np.int32)
MANY = 1_024
"""As many numbers may be kept before it is worth looking which are still in use."""


class Fields:
    """Numbers of fields, from 1 on; 0 is no field at all. Compared in full by Python, so that no two share one."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._last = 0
        self._limit = MANY

    @property
    def are_many(self) -> bool:
        """Whether ``keep`` should be called: keys come and go with tenants, and would pile up."""
        return len(self._numbers) > self._limit

    def root(self, key: Hashable) -> int:
        """Stands for the parent of a first block: below 0, where no block's id is."""
        return -1 - (self._number(key) if key != () else 0)

    def of_blocks(self, items: Sequence[Item], num_tokens: int, block_size: int) -> Any:
        """[blocks of num_tokens] int32: for each block the items that reach into it.

        Raises:
            ValueError: an item outside the tokens.
        """
        for first, length, _ in items:
            if first < 0 or length < 1 or first + length > num_tokens:
                raise ValueError(f"an item of {length} tokens at {first} lies outside the {num_tokens} tokens")
        if not items:
            return NO_FIELDS
        starts = range(0, num_tokens, block_size)
        return np.array([self._number(tuple(inside(items, at, block_size))) for at in starts], np.int32)

    def keep(self, numbers: set[int]) -> None:
        """Forget all other numbers: nothing that is findable or alive bears them."""
        self._numbers = {entry: number for entry, number in self._numbers.items() if number in numbers}
        self._limit = max(MANY, 2 * len(self._numbers))

    def _number(self, entry: Hashable) -> int:
        tagged = tagged_with_types(entry)
        if entry == ():
            return 0
        number = self._numbers.get(tagged)
        if number is None:
            self._last += 1
            number = self._numbers[tagged] = self._last
        return number


def inside(items: Sequence[Item], start: int, block_size: int) -> Iterator[Item]:
    """The items of which a token lies in the block that begins at ``start``."""
    return (item for item in items if item[0] < start + block_size and item[0] + item[1] > start)


def tagged_with_types(value: Hashable) -> Hashable:
    """``1``, ``1.0`` and ``True`` are equal to Python, and are different keys."""
    return tuple(map(tagged_with_types, value)) if isinstance(value, tuple) else (type(value), value)
