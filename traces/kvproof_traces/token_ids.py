"""Token ids for requests of which only lengths are known, such that what is shared is equal and nothing else is."""

from __future__ import annotations

from kvproof_traces.request import Request

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

    def prompt(self, request: Request) -> list[int]:
        """The prompt of ``request``, ``num_prompt_tokens`` ids."""
        if not request.hash_ids:
            first = self.fresh(request.num_prompt_tokens)
            return list(range(first, first + request.num_prompt_tokens))
        tokens: list[int] = []
        for value in request.hash_ids:
            first = self._block(value, request.hash_block_size)
            tokens.extend(range(first, first + request.hash_block_size))
        del tokens[request.num_prompt_tokens :]
        return tokens

    def _block(self, value: int, size: int) -> int:
        # The same number is another block at another block size, and numbers may be 64-bit hashes: renumber.
        if (size, value) not in self._blocks:
            self._blocks[size, value] = self.fresh(size)
        return self._blocks[size, value]


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that ``num_tokens`` tokens need."""
    return -(-num_tokens // block_size)
