"""Token ids for requests of which only lengths are known, such that what is shared is equal and nothing else is.

Ids come as int32 arrays of NumPy, which is what allocators are given: a prompt of 1,155 tokens, the mean of Azure's
conversations, is made in a microsecond, where ``list(range(...))`` or ``array("i", range(...))`` take twenty to forty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof_traces.request import Request

Tokens = NDArray[np.int32]

MAX_TOKEN_ID = 2**31 - 1
"""Allocators may keep ids in int32."""


class TokenIds:
    """Hands out token ids.

    Blocks of prompt that a trace names by the same hash id get the same tokens; every other token, prompt or output,
    gets an id that is used nowhere else, so that a prefix cache can't find what the trace doesn't share.
    """

    def __init__(self) -> None:
        self._next = 0
        self._blocks: dict[tuple[int, int], int] = {}

    def fresh(self, num_tokens: int) -> int:
        """The first of ``num_tokens`` consecutive new ids.

        Raises:
            ValueError: they would not fit into int32.
        """
        first = self._next
        self._next += num_tokens
        if self._next > MAX_TOKEN_ID:
            raise ValueError(f"requests: more than {MAX_TOKEN_ID} distinct tokens; replay fewer requests at a time")
        return first

    def prompt(self, request: Request) -> Tokens:
        """The prompt of ``request``, ``num_prompt_tokens`` ids."""
        num_tokens, size = request.num_prompt_tokens, request.hash_block_size
        if not request.hash_ids:
            return consecutive(self.fresh(num_tokens), num_tokens)
        firsts = np.array([self._block(value, size) for value in request.hash_ids], np.int32)
        return (firsts[:, None] + consecutive(0, size)).ravel()[:num_tokens]

    def _block(self, value: int, size: int) -> int:
        # The same number is another block at another block size, and numbers may be 64-bit hashes: renumber.
        if (size, value) not in self._blocks:
            self._blocks[size, value] = self.fresh(size)
        return self._blocks[size, value]


class Output:
    """The ids of what a branch generates: ranges, each from an output position on."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: tuple[tuple[int, int], ...] = ()) -> None:
        self.ranges = list(ranges)

    def draw(self, position: int, first: int) -> None:
        """From ``position`` on the ids are ``first`` and those after it."""
        self.ranges.append((position, first))

    def copy(self) -> Output:
        return Output(tuple(self.ranges))

    @property
    def origin(self) -> int:
        """The id of position 0 if the last range reached back to it: add a position for its id."""
        position, first = self.ranges[-1]
        return first - position

    def tokens(self, num_tokens: int) -> Tokens:
        """The first ``num_tokens`` ids."""
        ends = [position for position, _ in self.ranges[1:]] + [num_tokens]
        parts = [
            consecutive(first, min(end, num_tokens) - position)
            for (position, first), end in zip(self.ranges, ends, strict=True)
            if position < num_tokens
        ]
        return joined(parts)


def consecutive(first: int, num_tokens: int) -> Tokens:
    return np.arange(first, first + num_tokens, dtype=np.int32)


def joined(parts: list[Any]) -> Tokens:
    return parts[0] if len(parts) == 1 else np.concatenate([*parts, consecutive(0, 0)])


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that ``num_tokens`` tokens need."""
    return -(-num_tokens // block_size)
