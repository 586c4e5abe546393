"""A buddy allocator on slots (Knowlton, A fast storage allocator, CACM 1965), as the vLLM paper gave to Orca."""

from __future__ import annotations


class Buddy:
    """Chunks of a power of two, at a multiple of their size; a freed one merges with its free twin.

    A pool of another size is cut into the powers of two that make it up, largest first.
    """

    def __init__(self, num_slots: int) -> None:
        # Of each order the free chunks, by their first slot; a dict, so that the one freed last is taken first.
        self._free: list[dict[int, None]] = [{} for _ in range(num_slots.bit_length())]
        start = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots >> order & 1:
                self._free[order][start] = None
                start += 1 << order

    def can_take(self, num_slots: int) -> bool:
        return any(self._free[order_of(num_slots) :])

    def take(self, num_slots: int) -> tuple[int, int]:
        """(first slot, order) of a chunk of at least ``num_slots``.

        Raises:
            MemoryError: no free chunk is large enough.
        """
        order = found = order_of(num_slots)
        while found < len(self._free) and not self._free[found]:
            found += 1
        if found >= len(self._free):
            raise MemoryError(f"no free chunk of {1 << order} slots")
        start, _ = self._free[found].popitem()
        while found > order:
            found -= 1
            self._free[found][start + (1 << found)] = None
        return start, order

    def give_back(self, start: int, order: int) -> None:
        while order < len(self._free) and (twin := start ^ (1 << order)) in self._free[order]:
            del self._free[order][twin]
            start = min(start, twin)
            order += 1
        self._free[order][start] = None


def order_of(num_slots: int) -> int:
    """The exponent of the smallest power of two that is not below ``num_slots``."""
    return (num_slots - 1).bit_length()
