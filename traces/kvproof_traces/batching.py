"""A running batch on an allocator: admit a request, grow it by a token, take it off again. No policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from kvproof_traces.request import Request
from kvproof_traces.token_ids import TokenIds

Seq = tuple[int, int]
"""(index of the request, branch): the sequence id that the allocator sees."""


@dataclass(eq=False)
class Entry:
    """A request on its way. What it has generated outlives a preemption; its blocks don't."""

    index: int
    request: Request
    prompt: list[int] = field(default_factory=list)
    outputs: dict[Seq, list[int]] = field(default_factory=dict)
    """Generated tokens of each branch."""
    num_generated: int = 0
    """Output tokens that every branch has."""
    num_forks: int = 0
    """Forks of the request that were made."""
    was_admitted: bool = False

    @property
    def done(self) -> bool:
        return self.num_generated >= self.request.num_generated_tokens


class Batch:
    """Every call to the allocator goes through here, is timed, and leaves either all branches of an entry or none."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self.ids = TokenIds()
        self.seconds = 0.0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_block_copies = 0
        self.num_frees = 0
        self.changed: set[Seq] = set()
        """Sequences whose table may differ by more than one token's; the reader of tables empties it."""
        self.can_fork = hasattr(allocator, "fork")
        self.can_commit = hasattr(allocator, "commit")

    def admit(self, entry: Entry) -> bool:
        """Allocate the prompt, and after a preemption what was generated; False when it does not fit now."""
        entry.prompt = entry.prompt or self.ids.prompt(entry.request)
        branches = entry.outputs or {(entry.index, branch): [] for branch in range(entry.request.num_samples)}
        held: list[Seq] = []
        try:
            num_cached = self._allocate_branches(entry.prompt, branches, held)
        except MemoryError:
            self._free(held)
            return False
        if entry.was_admitted:
            self.num_recomputed_tokens += len(entry.prompt) + sum(map(len, branches.values()))
        else:
            self.num_prompt_tokens += len(entry.prompt)
            self.num_cached_tokens += num_cached
        entry.outputs, entry.was_admitted = branches, True
        return True

    def advance(self, entry: Entry) -> bool:
        """Make the forks that are due, then append one token to every branch; False when blocks ran out.

        After False the same call goes on where it stopped, once room was made, also after a preemption: a branch that
        has its token of this step already gets no other.
        """
        if entry.done:
            return True
        try:
            self._fork_due(entry)
            for seq, outputs in entry.outputs.items():
                if len(outputs) == entry.num_generated:
                    token = self.ids.fresh(1)
                    self._append(seq, [token])
                    outputs.append(token)
        except MemoryError:
            return False
        entry.num_generated += 1
        self.num_generated_tokens += len(entry.outputs)
        return True

    def commit(self, entry: Entry) -> None:
        """Tell the allocator that all tokens handed out are written, where it wants to know."""
        if self.can_commit:
            for seq in entry.outputs:
                self._timed(self.allocator.commit, seq)

    def release(self, entry: Entry) -> None:
        """Free all branches; what they generated stays, for a preempted request to come back with."""
        self._free(entry.outputs)

    def _allocate_branches(self, prompt: list[int], branches: dict[Seq, list[int]], held: list[Seq]) -> int:
        """Lone branches come back as one prompt, which a prefix cache may find. Of several the prompt is shared anew,
        and what they generated is appended to each: sharing of generated tokens is not rebuilt."""
        first, *others = branches
        whole = list(prompt) if others else prompt + branches[first]  # a copy: allocators may keep and extend it
        num_cached = self._timed(self.allocator.allocate, first, whole)
        held.append(first)
        self.changed.add(first)
        for seq in others:
            self._branch_off(first, seq, prompt)
            held.append(seq)
        for seq, outputs in branches.items():
            if others and outputs:
                self._append(seq, list(outputs))
        return int(num_cached)

    def _fork_due(self, entry: Entry) -> None:
        forks = entry.request.forks
        while entry.num_forks < len(forks) and forks[entry.num_forks][0] == entry.num_generated:
            _, parent_branch, child_branch = forks[entry.num_forks]
            parent, child = (entry.index, parent_branch), (entry.index, child_branch)
            if child in entry.outputs:
                self._free([child])
                del entry.outputs[child]
            history = entry.outputs[parent]
            self._branch_off(parent, child, entry.prompt + history)
            entry.outputs[child] = list(history)
            entry.num_forks += 1

    def _branch_off(self, parent: Seq, child: Seq, tokens: list[int]) -> None:
        if self.can_fork:
            self.num_block_copies += len(self._timed(self.allocator.fork, parent, child))
        else:
            self._timed(self.allocator.allocate, child, list(tokens))
        self.changed.add(child)

    def _free(self, seqs: Any) -> None:
        for seq in seqs:
            self._timed(self.allocator.free, seq)
            self.num_frees += 1

    def _append(self, seq: Seq, tokens: list[int]) -> None:
        copies = self._timed(self.allocator.append, seq, tokens)
        if len(copies):
            self.num_block_copies += len(copies)
            self.changed.add(seq)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        start = perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += perf_counter() - start
