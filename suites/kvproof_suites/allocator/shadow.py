"""The shadow pool: tags in place of keys and values.

A pool of tags has one slot for each slot of the real pool. What the engine would compute for a token depends on the
token, on all tokens before it, on the key (adapter, salt) and on the weights; a *tag* is just that, so that two slots
hold equal tags exactly when real K and V would be equal by right. The suite writes tags where an allocator's tables
say, makes the copies it orders, and reads sequences back: whatever the allocator keeps inside, a slot that was given
away, overwritten, never written or found under the wrong prefix reads as somebody else's tag, and says whose.

When writes land. At once: as if every step ended before the next operation. One step late: what an operation hands out
is written just before the next operation on the same sequence (an engine runs one step of a sequence at a time), or
before its ``commit``, which promises that all is written; operations on other sequences come in between, as they do
while a step is in flight. So a block that is published before it is computed is found empty. Writes of a sequence
that is freed first are dropped, as when a request is aborted before its step was launched. (A step that was launched
still writes, but on one stream it does so before any later owner of the block: no slot that is read can tell.)
Copies are made at once in both modes, since they are ordered before the writes of their operation and after those of
all earlier ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

MAX_TOLD = 16
"""Numbers of a list that a text spells out."""


class Prefix:
    """A token and all before it. Equal ones are one object, so that to compare or hash one is one step, however long it
    is: a history of real prompts has a million tags."""

    __slots__ = ("__weakref__", "before", "length", "token")

    def __init__(self, before: Prefix | None, token: int) -> None:
        """By ``grown`` alone, which finds one that is there."""
        self.before, self.token = before, token
        self.length: int = 1 if before is None else before.length + 1

    def __len__(self) -> int:
        return self.length

    def tokens(self) -> tuple[int, ...]:
        found: list[int] = []
        prefix: Prefix | None = self
        while prefix is not None:
            found.append(prefix.token)
            prefix = prefix.before
        return tuple(reversed(found))


_PREFIXES: WeakValueDictionary[tuple[int, int], Prefix] = WeakValueDictionary()
"""By the address of what is before it, which lives as long as it does, and its token."""


def grown(before: Prefix | None, token: int) -> Prefix:
    name = (id(before), token)
    if (found := _PREFIXES.get(name)) is None:
        found = _PREFIXES[name] = Prefix(before, token)
    return found


class Tag(NamedTuple):
    """Identity of one token in its place."""

    key: tuple[Hashable, ...]
    epoch: int
    """How often the prefix cache was reset before its sequence was admitted: stands for the weights."""
    prefix: Prefix

    def __str__(self) -> str:
        under = f" under key {self.key!r}" if self.key else ""
        since = f" (since reset {self.epoch})" if self.epoch else ""
        in_its_place = (
            f"token {self.prefix.token} at position {len(self.prefix) - 1} of {shortened(self.prefix.tokens())}"
        )
        return f"{in_its_place}{under}{since}"


def shortened(values: Sequence[int]) -> str:
    """As a list; of many the first and the last, since a real prompt fills a screen."""
    if len(values) <= MAX_TOLD:
        return str(list(values))
    return f"[{', '.join(map(str, values[: MAX_TOLD - 1]))}, ... {values[-1]}]"


def tags_of(key: tuple[Hashable, ...], epoch: int, tokens: Iterable[int], before: Prefix | None = None) -> list[Tag]:
    """The tags of ``tokens`` when they follow ``before``."""
    return [Tag(key, epoch, before := grown(before, token)) for token in tokens]


def tokens_of(tags: Sequence[Tag]) -> tuple[int, ...]:
    """The tokens of a sequence that has ``tags``."""
    return tags[-1].prefix.tokens() if tags else ()


class ShadowPool:
    """``pool_blocks`` blocks of ``block_size`` slots, each with a tag or, before its first write, None."""

    def __init__(self, pool_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool_blocks = pool_blocks
        self.slots: list[Tag | None] = [None] * (pool_blocks * block_size)
        self._held: Counter[Tag] = Counter()

    def read(self, block: int, offset: int) -> Tag | None:
        return self.slots[block * self.block_size + offset]

    def write(self, block: int, offset: int, tag: Tag | None) -> None:
        slot = block * self.block_size + offset
        if (old := self.slots[slot]) is not None:
            self._held[old] -= 1
            if not self._held[old]:
                del self._held[old]
        if tag is not None:
            self._held[tag] += 1
        self.slots[slot] = tag

    def copy(self, source: int, destination: int, origin: ShadowPool | None = None) -> None:
        """Copy a whole block, from the pool ``origin`` where it is another one."""
        for offset in range(self.block_size):
            self.write(destination, offset, (origin or self).read(source, offset))

    def missing(self, tags: Iterable[Tag]) -> list[Tag]:
        """Those that no slot of the pool has."""
        return [tag for tag in tags if tag not in self._held]


def place(position: int, block: int, block_size: int) -> str:
    """Where a token sits, from the sequence down to the pool."""
    logical, offset = divmod(position, block_size)
    slot = block * block_size + offset
    return f"position {position} (logical block {logical}, slot {slot}, physical block {block})"
