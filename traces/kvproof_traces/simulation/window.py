"""Blocks that slid out of the window."""

from __future__ import annotations

from kvproof_traces.simulation.agenda import Agenda
from kvproof_traces.simulation.entry import Entry


class Window:
    """The next token sees the ``size`` before and including its own; a block wholly before these is given back.

    As with growth, a sequence longer than its window loses a block in every ``block_size``-th step: ``leave[phase]``
    counts the sequences that do.
    """

    def __init__(self, size: int, block_size: int) -> None:
        self.size, self.block_size = size, block_size
        self.leave = [0] * block_size
        self.starts = Agenda()
        self._joined: list[Entry] = []

    def num_gone(self, context: int) -> int:
        """Blocks that a sequence has given back by the time it has ``context`` tokens."""
        return max(0, context - self.size) // self.block_size

    def join(self, entry: Entry, step: int) -> None:
        """``entry`` decodes from ``step`` on."""
        starts = self.size + self.block_size - entry.prompt - entry.base - 1
        if starts > step:
            self.starts.add(starts, entry)
        elif entry.on_host and starts < step:
            self._count(entry, 1)  # the host has no block that has left already
        else:
            self._joined.append(entry)

    def step(self, step: int) -> int:
        """After the tokens of ``step``: how many blocks leave."""
        for entry in self.starts.pop(step):
            is_there = entry.running and entry.num_computed is None and not entry.leaves
            if is_there and entry.context(step + 1) == self.size + self.block_size:
                self._count(entry, 1)
        num_left = self.leave[step % self.block_size]
        for entry in self._joined:
            if entry.running and not entry.leaves:
                # It is counted from the next step on; what its prompt left behind goes at once.
                num_left += self.num_gone(entry.context(step) + (entry.final > 0))
                self._count(entry, 1)
        self._joined.clear()
        return num_left

    def release(self, entry: Entry, context: int) -> int:
        """Blocks that it has given back already."""
        if not entry.leaves:
            return 0
        self._count(entry, -1)
        return self.num_gone(context)

    def _count(self, entry: Entry, sign: int) -> None:
        entry.leaves = sign > 0
        self.leave[(self.size - 1 - entry.prompt - entry.base) % self.block_size] += sign
