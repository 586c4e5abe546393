"""Ids that stand for a block and all before it, made from anything that tells blocks apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


class PrefixIds:
    """Numbers prefixes as they first appear, from 0. Remembers every distinct block: about 150 bytes each."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Hashable], int] = {}

    def of(self, blocks: Iterable[Hashable]) -> tuple[int, ...]:
        """One id a block. Two prompts get the same ids as far as their blocks are equal from the first on."""
        known, previous, ids = self._known, -1, []
        for block in blocks:
            previous = known.setdefault((previous, block), len(known))
            ids.append(previous)
        return tuple(ids)


def token_blocks(tokens: Sequence[int], block_size: int) -> list[tuple[int, ...]]:
    """The tokens in blocks; the last one may be shorter."""
    return [tuple(tokens[start : start + block_size]) for start in range(0, len(tokens), block_size)]
