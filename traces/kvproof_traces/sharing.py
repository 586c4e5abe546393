"""Shared prefixes: how much of the prompts was seen before, and how much of that a cache of some size still holds.

The cache is LRU over blocks, looked up before a request's blocks go in, the tail of a prompt older than its head. Then
a block is never held without all before it, a hit by blocks is a hit by prefixes, and a block is found in a cache of C
tokens if and only if it is among the C most recent ones (Mattson et al., 1970): one pass answers for every C.

The blocks that a request was the last to touch lie together in the order of recency, and later requests take them from
the head on. So the order is kept by request, not by block: a Fenwick tree of the tokens that each was last to touch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kvproof_traces.request import Request

CAPACITIES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
"""Tokens; 3,000,000 is the one that Mooncake's paper reports."""


@dataclass(frozen=True)
class Sharing:
    """Of the requests that have hash ids. Shares are of all blocks or prompt tokens that they ask for."""

    num_blocks: int
    share_of_blocks: float
    """Found in a cache without end."""
    share_of_tokens: float
    """The same by tokens, of which a partial block has fewer."""
    num_fully_cached: int
    """Requests whose whole prompt was seen before."""
    num_distinct_blocks: int
    share_used_once: float
    """Of the distinct blocks."""
    share_with_first_block: float
    """Requests that start with the commonest first block."""
    hit_rates: tuple[tuple[int, float], ...]
    """(capacity in tokens, share of prompt tokens found)."""


class SharingTally:
    """Takes requests one by one. Remembers about 150 bytes for each distinct block, and 8 for each request.

    Hash ids have to stand for prefixes, which is what reading a trace checks.
    """

    def __init__(self, capacities: Sequence[int] = CAPACITIES) -> None:
        if wrong := [size for size in capacities if size < 1]:
            raise ValueError(f"capacities: {wrong[0]} is below 1 token")
        self.capacities = sorted(capacities)
        self.hit_tokens = [0] * len(self.capacities)
        self.recency = Fenwick()
        self.toucher: dict[int, dict[int, int]] = {}
        """Hash block size to block to the request that touched it last."""
        self.again: set[tuple[int, int]] = set()
        self.first_blocks: Counter[tuple[int, int]] = Counter()
        self.num_blocks = self.num_tokens = self.num_shared = self.shared_tokens = 0
        self.num_with_ids = self.num_fully_cached = 0

    def add(self, request: Request) -> None:
        """The next request, in order of arrival. One without hash ids takes room in the cache and finds nothing."""
        ids, size, num_tokens = request.hash_ids, request.hash_block_size, request.num_prompt_tokens
        if not ids:
            self.recency.append(-(-num_tokens // size) * size)
            return
        toucher = self.toucher.setdefault(size, {})
        runs = [(last, sum(1 for _ in run)) for last, run in groupby(map(toucher.get, ids)) if last is not None]
        num_shared = 0
        for last, length in runs:
            self._found(request, num_shared, length, self.recency.after(last))
            num_shared += length
        for last, length in runs:  # not before all were looked up: what is found moves only then
            self.recency.add(last, -length * size)
        self.recency.append(len(ids) * size)
        toucher.update(dict.fromkeys(ids, len(self.recency) - 1))
        self.again.update((size, value) for value in ids[:num_shared])
        self._count(request, num_shared)

    def _found(self, request: Request, start: int, length: int, num_newer: int) -> None:
        """Blocks ``start`` up of the prompt, which come after ``num_newer`` tokens in the order of recency."""
        size = request.hash_block_size
        for index, capacity in enumerate(self.capacities):
            held = min(length, (capacity - num_newer) // size)
            if held > 0:
                self.hit_tokens[index] += min((start + held) * size, request.num_prompt_tokens) - start * size

    def _count(self, request: Request, num_shared: int) -> None:
        size, num_blocks = request.hash_block_size, len(request.hash_ids)
        self.num_with_ids += 1
        self.num_blocks += num_blocks
        self.num_shared += num_shared
        self.num_tokens += request.num_prompt_tokens
        self.shared_tokens += min(num_shared * size, request.num_prompt_tokens)
        self.num_fully_cached += num_shared == num_blocks
        self.first_blocks[size, request.hash_ids[0]] += 1

    def result(self) -> Sharing | None:
        """None when no request had hash ids."""
        if not self.num_with_ids:
            return None
        num_distinct = sum(map(len, self.toucher.values()))
        return Sharing(
            num_blocks=self.num_blocks,
            share_of_blocks=self.num_shared / self.num_blocks,
            share_of_tokens=self.shared_tokens / self.num_tokens,
            num_fully_cached=self.num_fully_cached,
            num_distinct_blocks=num_distinct,
            share_used_once=1 - len(self.again) / num_distinct,
            share_with_first_block=max(self.first_blocks.values()) / self.num_with_ids,
            hit_rates=tuple(
                (capacity, found / self.num_tokens)
                for capacity, found in zip(self.capacities, self.hit_tokens, strict=True)
            ),
        )


class Fenwick:
    """A growing list of numbers with sums of its ends in logarithmic time (Fenwick, 1994)."""

    def __init__(self) -> None:
        self._sums = [0]
        self._total = 0

    def __len__(self) -> int:
        return len(self._sums) - 1

    def append(self, value: int) -> None:
        place, step, covered = len(self._sums), 1, value
        while step < place & -place:
            covered += self._sums[place - step]
            step *= 2
        self._sums.append(covered)
        self._total += value

    def add(self, index: int, value: int) -> None:
        """To the number at ``index``."""
        place = index + 1
        while place < len(self._sums):
            self._sums[place] += value
            place += place & -place
        self._total += value

    def after(self, index: int) -> int:
        """The sum of the numbers past ``index``."""
        place, before = index + 1, 0
        while place:
            before += self._sums[place]
            place &= place - 1
        return self._total - before
