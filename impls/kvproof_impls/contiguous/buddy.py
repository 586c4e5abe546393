"""The buddy system (Knuth, The Art of Computer Programming, volume 1, section 2.5): runs of 2^k consecutive blocks.

A run that is too large is split into halves, which are buddies; two free buddies merge again. The buddy of a run
differs from it in one bit of the address, so that no neighbour has to be searched for. A request is rounded up to a
power of two, and one between two free runs that are no buddies finds no place: both is what paging does away with.
"""

from __future__ import annotations


class BuddyPool:
    """``num_blocks`` blocks, handed out and taken back in runs of a power of two.

    A pool whose size is no power of two starts as its binary parts, the largest first: 24 is 16 and 8. Parts never
    merge: what would be the buddy of a part starts the next one, and that is smaller.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = self.num_free = num_blocks
        self._free: list[dict[int, None]] = [{} for _ in range(num_blocks.bit_length())]
        """First blocks of the free runs of each order, the one freed last behind; a dict is a set that keeps order."""
        start = 0
        for order in reversed(range(num_blocks.bit_length())):
            if num_blocks >> order & 1:
                self._free[order][start] = None
                start += 1 << order

    def fits(self, num_blocks: int) -> bool:
        """Whether ``take`` would find a run."""
        return any(self._free[order_of(num_blocks) :])

    def take(self, num_blocks: int) -> range:
        """The smallest free run of at least ``num_blocks``, halved until one half more would be too short.

        Raises:
            MemoryError: no free run is long enough, however many blocks are free in all.
        """
        order = order_of(num_blocks)
        found = next((k for k in range(order, len(self._free)) if self._free[k]), None)
        if found is None:
            raise MemoryError(
                f"no run of {1 << order} consecutive blocks is free, though {self.num_free} are in all"
                if self.num_free
                else "no block is free"
            )
        start, _ = self._free[found].popitem()
        for half in reversed(range(order, found)):
            self._free[half][start + (1 << half)] = None
        self.num_free -= 1 << order
        return range(start, start + (1 << order))

    def give(self, run: range) -> None:
        """Take back a run that ``take`` gave, and merge it with its buddy as long as that is free."""
        start, order = run.start, order_of(len(run))
        self.num_free += len(run)
        while (buddy := start ^ (1 << order)) in self._free[order]:
            del self._free[order][buddy]
            start, order = min(start, buddy), order + 1
        self._free[order][start] = None

    def free_runs(self) -> list[range]:
        """What is free, lowest first; buddies that are both free are one run."""
        return sorted(
            (range(start, start + (1 << order)) for order, starts in enumerate(self._free) for start in starts),
            key=lambda run: run.start,
        )


def order_of(num_blocks: int) -> int:
    """The smallest k with 2^k >= ``num_blocks``; 0 for none, as there is no shorter run."""
    return (num_blocks - 1).bit_length() if num_blocks else 0
