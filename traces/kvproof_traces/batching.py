"""A running batch on an allocator: admit a request, grow all by a token, take one off again. No policy.

The work of a step is proportional to what changes in it. A sequence that only gets its next token is not looked at by
itself, unless the allocator has no ``append_step``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from kvproof_traces.calls import Calls
from kvproof_traces.entry import Entry, Seq
from kvproof_traces.rows import BlockEnds, Rows
from kvproof_traces.token_ids import TokenIds, Tokens, joined

Calendar = defaultdict[int, dict[Entry, None]]
"""Number of steps made to the entries that are due then."""


class Batch:
    """An admission leaves all branches of an entry or none."""

    def __init__(self, allocator: Any, max_num_seqs: int) -> None:
        self.calls = Calls(allocator)
        self.ids = TokenIds()
        self.entries: dict[int, Entry] = {}
        """What runs, by index of the request, in order of admission."""
        self.rows, self.block_ends = Rows(max_num_seqs), BlockEnds(allocator.block_size)
        self._by_block = "commit" in self.calls.can and not (self.calls.batched and "commit_step" in self.calls.can)
        self.num_steps = 0
        self.num_live = 0
        """Sequences, those that generate nothing included."""
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self.num_generated_tokens = self.num_recomputed_tokens = 0
        self._alone: Calendar = defaultdict(dict)
        """Entries that can't be grown together with others, because they fork first or have a branch ahead."""
        self._ends: Calendar = defaultdict(dict)
        self._in_order: list[tuple[Seq, int]] | None = None

    def admit(self, entry: Entry) -> bool:
        """Allocate the prompt, and after a preemption what was generated; False when it does not fit now."""
        prompt = entry.begin(self.ids)
        held: list[Seq] = []
        try:
            num_cached = self._allocate_branches(entry, prompt, held)
        except MemoryError:
            self.calls.free(held)
            return False
        if entry.was_admitted:
            self.num_recomputed_tokens += len(prompt) + sum(map(entry.num_held, entry.outputs))
        else:
            self.num_prompt_tokens += len(prompt)
            self.num_cached_tokens += num_cached
        entry.was_admitted = True
        self._enter(entry)
        return True

    def grow(self, make_room: Callable[[], None]) -> None:
        """Make the forks that are due, then append a token to every branch of every entry. ``make_room`` is called
        when blocks run out, and releases the entry that was admitted last; growing goes on where it stopped."""
        alone = self._alone.pop(self.num_steps, {})
        if self.calls.batched:
            if alone or not self._grow_at_once(make_room):
                self._grow_in_turn(make_room, alone)
        elif alone or not self._grow_row_by_row():
            self._grow_in_turn(make_room, None)
        self.num_steps += 1
        self.num_generated_tokens += len(self.rows.seqs)

    def commit(self) -> None:
        """Tell the allocator that all tokens handed out are written, where it wants to know. One by one this is done
        for sequences that filled a block: before that there is nothing that could be published."""
        calls = self.calls
        if self._by_block:
            full = self.block_ends.at(self.num_steps)
            for seq in [*calls.changed, *(seq for seq in full if seq not in calls.changed)]:
                calls.timed(calls.allocator.commit, seq)
        elif "commit_step" in calls.can:
            seqs = self.rows.seqs if self.num_live == len(self.rows.seqs) else list(self.live())
            calls.timed(calls.allocator.commit_step, seqs)

    def ended(self) -> list[Entry]:
        """What has all its tokens since the last step, in order of admission."""
        return list(self._ends.pop(self.num_steps, ()))

    def release(self, entry: Entry, comes_back: bool = False) -> None:
        """Free all branches. What they generated stays, for a preempted request to come back with."""
        if comes_back:
            entry.num_generated = entry.start + self.num_steps + entry.idle
        del self.entries[entry.index]
        self._ends.get(entry.num_total - entry.start, {}).pop(entry, None)
        if entry.next_fork is not None:
            self._alone.get(entry.next_fork - entry.start, {}).pop(entry, None)
        self.num_live -= len(entry.outputs)
        for seq in entry.outputs:
            self._take_off(seq)
        self.calls.free(entry.outputs, comes_back)

    @property
    def last(self) -> Entry:
        """The entry admitted last."""
        return self.entries[next(reversed(self.entries))]

    def live(self) -> Iterator[Seq]:
        for entry in self.entries.values():
            yield from entry.outputs

    def context_len(self, seq: Seq) -> int:
        """Tokens of a live sequence after a step."""
        entry = self.entries[seq[0]]
        return entry.request.num_prompt_tokens + entry.start + self.num_steps

    def _allocate_branches(self, entry: Entry, prompt: Tokens, held: list[Seq]) -> int:
        """Lone branches come back as one prompt, which a prefix cache may find. Of several the prompt is shared anew,
        and what they generated is appended to each: sharing of generated tokens is not rebuilt."""
        first, *others = entry.outputs
        whole = prompt if others else entry.with_outputs(first)
        num_cached = self.calls.allocate(first, whole, entry.max_tokens)
        held.append(first)
        for seq in others:
            self.calls.branch_off(first, seq, prompt, entry.max_tokens)
            held.append(seq)
        for seq in entry.outputs if others else ():
            if num_held := entry.num_held(seq):
                self.calls.append(seq, entry.outputs[seq].tokens(num_held).tolist())
        return num_cached

    def _enter(self, entry: Entry) -> None:
        entry.start = entry.num_generated - self.num_steps - entry.idle
        self.entries[entry.index] = entry
        self.num_live += len(entry.outputs)
        self._ends[entry.num_total - entry.start][entry] = None
        if not entry.idle:
            self._put_on(entry)
            self._await_fork(entry)
        if entry.ahead:
            self._alone[self.num_steps][entry] = None

    def _put_on(self, entry: Entry) -> None:
        for seq, output in entry.outputs.items():
            self.rows.put(seq, output.origin + entry.start)
            if self._by_block:
                self.block_ends.put(seq, entry.request.num_prompt_tokens + entry.start)
        self._in_order = None

    def _take_off(self, seq: Seq) -> None:
        self.rows.remove(seq)
        if self._by_block:
            self.block_ends.remove(seq)
        self._in_order = None

    def _await_fork(self, entry: Entry) -> None:
        if entry.next_fork is not None:
            self._alone[entry.next_fork - entry.start][entry] = None

    def _grow_at_once(self, make_room: Callable[[], None]) -> bool:
        """False when the entry to give way next has several branches: some of them may get their token first."""
        while self.rows.seqs:
            try:
                self.calls.append_step(self.rows.seqs, self.rows.tokens(self.num_steps))
                return True
            except MemoryError:
                if len(self.last.outputs) > 1:
                    return False
                make_room()
        return True

    def _grow_row_by_row(self) -> bool:
        """False when blocks ran out; then ``ahead`` of the entries says who has its token already."""
        if self._in_order is None:
            self._in_order = [(seq, self.rows.origin(seq)) for seq in self.live() if seq in self.rows]
        num_grown = self.calls.append_each(self._in_order, self.num_steps)
        if num_grown == len(self._in_order):
            return True
        for seq, _ in islice(self._in_order, num_grown):
            self.entries[seq[0]].ahead.add(seq)
        return False

    def _grow_in_turn(self, make_room: Callable[[], None], alone: dict[Entry, None] | None) -> None:
        """In order of admission; ``alone``: those that can't be grown together with their neighbours, None: all."""
        order, turn = list(self.entries.values()), 0
        while turn < len(order):
            end = turn if alone is None else _end_of_crowd(order, turn, alone)
            grown = self._grow_alone(order[turn]) if end == turn else self._grow_crowd(order[turn:end])
            if grown:
                turn = max(end, turn + 1)
            else:
                make_room()
                order.pop()

    def _grow_crowd(self, crowd: list[Entry]) -> bool:
        seqs = [seq for entry in crowd for seq in entry.outputs if seq in self.rows]
        tokens = np.array([self.rows.origin(seq) + self.num_steps for seq in seqs], np.int32)
        try:
            self.calls.append_step(seqs, tokens)
        except MemoryError:
            return False
        return True

    def _grow_alone(self, entry: Entry) -> bool:
        """After False the same call goes on where it stopped, also after a preemption."""
        if entry.idle:
            return True
        position = entry.start + self.num_steps
        try:
            if entry.next_fork == position:
                self._fork(entry, position)
            for seq, output in entry.outputs.items():
                if seq not in entry.ahead:
                    self.calls.append(seq, [output.origin + position])
                    entry.ahead.add(seq)
        except MemoryError:
            return False
        entry.ahead.clear()
        self._await_fork(entry)
        return True

    def _fork(self, entry: Entry, position: int) -> None:
        """All forks due at ``position``."""
        prompt = entry.begin(self.ids)
        while entry.next_fork == position:
            _, parent_branch, child_branch = entry.request.forks[entry.num_forks]
            parent, child = (entry.index, parent_branch), (entry.index, child_branch)
            if child in entry.outputs:
                self.calls.free([child])
                self._take_off(child)
                del entry.outputs[child]
                self.num_live -= 1
            history = entry.outputs[parent]
            self.calls.branch_off(parent, child, joined([prompt, history.tokens(position)]), entry.max_tokens)
            entry.outputs[child] = history.copy()
            self.num_live += 1
            entry.num_forks += 1
        entry.draw(self.ids, position)
        self._put_on(entry)


def _end_of_crowd(order: list[Entry], turn: int, alone: dict[Entry, None]) -> int:
    """Where the entries end that can be grown together from ``turn`` on. The last of all is not among them when it has
    several branches: blocks may run out when only some of them have their token."""
    end = next((index for index in range(turn, len(order)) if order[index] in alone), len(order))
    return end - 1 if end == len(order) and len(order[-1].outputs) > 1 else end
