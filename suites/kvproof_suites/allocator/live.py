"""What the suite knows of a live sequence and of prompts that it has seen, and how it spells a call."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kvproof_suites.allocator.shadow import Prefix, Tag, tokens_of
from kvproof_suites.allocator.writes import Handed

NUM_KNOWN = 8

Known = dict[tuple[tuple[Hashable, ...], tuple[int, ...]], list[Tag]]
"""Prompts that were seen lately, by key and tokens, and what stands in the pool where one is found."""


class Derailed(Exception):
    """The allocator broke a law that this test isn't about, in a way after which nothing can be judged."""


@dataclass
class Live:
    """What is true of a live sequence."""

    key: tuple[Hashable, ...]
    epoch: int
    tags: list[Tag]
    pending: dict[int, Handed] = field(default_factory=dict)
    """Positions whose write has not landed; always the last ones."""
    num_reserved: int = 0
    """Tokens that the table must have room for, look-ahead included."""
    first_query: int = 0
    """Position of the first token that was handed out last: no query to come sees further back than it does."""
    host_blocks: tuple[int, ...] = ()
    """Where its blocks were copied to while it is swapped out."""

    @property
    def prefix(self) -> Prefix | None:
        return self.tags[-1].prefix if self.tags else None

    @property
    def tokens(self) -> tuple[int, ...]:
        return tokens_of(self.tags)

    @property
    def num_covered(self) -> int:
        return max(len(self.tags), self.num_reserved)


def spell(method: str, args: Iterable[Any]) -> str:
    return f"{method}({', '.join(map(repr, args))})"


def remember(known: Known, key: tuple[Hashable, ...], tags: list[Tag]) -> None:
    name = (key, tokens_of(tags))
    known.pop(name, None)
    known[name] = list(tags)
    if len(known) > NUM_KNOWN:
        del known[next(iter(known))]
