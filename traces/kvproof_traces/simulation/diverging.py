"""Branches that part: the first tokens of parallel samples, and forks, with the copies on write that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof_traces.simulation.agenda import Agenda
from kvproof_traces.simulation.entry import Entry
from kvproof_traces.simulation.forks import Branches
from kvproof_traces.simulation.prefix import Node

if TYPE_CHECKING:
    from kvproof_traces.simulation.paged import PagedPool


class Diverging:
    """What a step needs for it is known before it is made, so that room can be made first. A branch that is replaced
    gives its blocks back after that."""

    def __init__(self, pool: PagedPool) -> None:
        self.pool, self.block_size = pool, pool.block_size
        self.forks = Agenda()
        self.due: dict[Entry, int] = {}
        """Who forks or diverges in this step, and the blocks needed for that."""
        self.num_due = 0
        self.num_copies = 0
        """Copies on write, so far."""

    def begin(self, entry: Entry) -> None:
        """``entry`` decodes from this step on. At the first token all but one of its samples copy the prompt's tail."""
        if entry.final and entry.width > 1 and not entry.num_generated and entry.prompt % self.block_size:
            self._note(entry, entry.width - 1)
        self._await_fork(entry)

    def announce(self, step: int) -> None:
        """Note what the forks of this step need."""
        for entry in self.forks.pop(step):
            if entry.running and entry.num_computed is None and self._next_step(entry) == step:
                self._note(entry, self._num_needed(entry, step))

    def withdraw(self, entry: Entry) -> None:
        """It gives way instead."""
        self.num_due -= self.due.pop(entry, 0)

    def make(self, step: int) -> None:
        """There is room."""
        for entry in self.due:
            if entry.base + step == 0:
                self._copy(entry, entry.width - 1, entry.prompt % self.block_size)
                continue
            while self._next_step(entry) == step:
                self._fork(entry, step)
            self._await_fork(entry)
        self.due.clear()
        self.num_due = 0

    def _num_needed(self, entry: Entry, step: int) -> int:
        """Blocks: a copy of the last one for each fork; where that is full, none but for a branch that is new."""
        forks, first = entry.request.forks, entry.next_fork
        last = first
        while last < len(forks) and forks[last][0] == entry.base + step:
            last += 1
        if entry.context(step) % self.block_size:
            return last - first
        if entry.width == entry.num_branches:
            return 0
        return len({child for _, _, child in forks[first:last]} - entry.branch_ids())

    def _note(self, entry: Entry, num_blocks: int) -> None:
        self.due[entry] = num_blocks
        self.num_due += num_blocks

    def _next_step(self, entry: Entry) -> int:
        forks, index = entry.request.forks, entry.next_fork
        return forks[index][0] - entry.base if index < len(forks) else -1

    def _await_fork(self, entry: Entry) -> None:
        if entry.final and entry.next_fork < len(entry.request.forks):
            self.forks.add(self._next_step(entry), entry)

    def _fork(self, entry: Entry, step: int) -> None:
        _, parent, child = entry.request.forks[entry.next_fork]
        context, size = entry.context(step), self.block_size
        if entry.branches is None:
            entry.branches = Branches(entry.branch_ids(), entry.prompt // size)
        num_blocks, is_new = entry.branches.fork(parent, child, context, size)
        entry.next_fork += 1
        num_tokens = context if is_new else num_blocks * size - -context % size
        if is_new:
            self.pool.widen(entry, context)
        else:
            # Blocks that were taken in this step have no content yet.
            is_written = entry.base + step > entry.num_generated
            self._give_back(num_blocks, num_tokens, num_blocks - (context % size > 0) if is_written else 0)
        entry.num_saved += num_blocks
        entry.num_saved_tokens += num_tokens
        self.pool.saved += num_blocks
        if context % size:
            self._copy(entry, 1, context % size)

    def _give_back(self, num_blocks: int, num_tokens: int, num_written_blocks: int) -> None:
        """Of the branch that is replaced."""
        self.pool.free += num_blocks
        self.pool.tokens -= num_tokens
        if self.pool.cache is not None:
            self.pool.cache.keep(Node(None, num_written_blocks, 0))

    def _copy(self, entry: Entry, num_copies: int, num_tokens: int) -> None:
        """``num_copies`` blocks of ``num_tokens`` tokens become a branch's own."""
        self.pool.free -= num_copies
        self.pool.tokens += num_copies * num_tokens
        self.pool.saved -= num_copies
        self.num_copies += num_copies
        entry.num_saved -= num_copies
        entry.num_saved_tokens -= num_copies * num_tokens
