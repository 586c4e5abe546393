"""The calls of a replay to its allocator: timed, and with what they say about copies and tables kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from kvproof_traces.entry import Seq
from kvproof_traces.token_ids import Tokens

CAPABILITIES = ("append_step", "commit", "commit_step", "fork", "preempt")


class Calls:
    """One allocator. Absent methods are absent capabilities."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self.can = {name for name in CAPABILITIES if callable(getattr(allocator, name, None))}
        # Nobody reads the step tensors here: where they are made anew every time, single calls are the faster way.
        self.batched = "append_step" in self.can and not getattr(allocator, "rebuilds_step", False)
        self.seconds = 0.0
        self.num_block_copies = 0
        self.num_frees = 0
        self.changed: dict[Seq, bool] = {}
        """New sequences, and those whose table may differ by more than growth; true where something may be shared.
        ``forget`` empties it, and the next two."""
        self.gone: list[Seq] = []
        self.any_changed = False
        """Some table differs, and the allocator did not say which."""
        # These two need the length at which a sequence will end, as Orca's allocators in the vLLM paper do.
        self._told_lengths = getattr(allocator, "reserves", None) in ("pow2", "oracle")

    def allocate(self, seq: Seq, tokens: Tokens, max_tokens: int) -> int:
        """Tokens found cached. ``max_tokens``: length of the sequence when it ends."""
        allocate = self.allocator.allocate
        if self._told_lengths:
            allocate = partial(allocate, max_tokens=max_tokens)
        num_cached = int(self.timed(allocate, seq, tokens))
        self.changed[seq] = num_cached > 0
        return num_cached

    def branch_off(self, parent: Seq, child: Seq, tokens: Tokens, max_tokens: int) -> None:
        """``child`` becomes a copy of ``parent``, whose tokens are ``tokens``."""
        if "fork" not in self.can:
            self.allocate(child, tokens, max_tokens)
            return
        self.num_block_copies += len(self.timed(self.allocator.fork, parent, child))
        self.changed[parent] = self.changed[child] = True

    def append(self, seq: Seq, tokens: list[int]) -> None:
        self.copied(seq, self.timed(self.allocator.append, seq, tokens))

    def append_each(self, rows: Sequence[tuple[Seq, int]], num_steps: int) -> int:
        """Append to each (sequence, origin) its token ``origin + num_steps``; how many got it before blocks ran out."""
        append, start = self.allocator.append, perf_counter()
        row = -1
        try:
            for row, (seq, origin) in enumerate(rows):  # noqa: B007, the row that failed
                if len(copies := append(seq, [origin + num_steps])):
                    self.copied(seq, copies)
        except MemoryError:
            return row
        finally:
            self.seconds += perf_counter() - start
        return len(rows)

    def append_step(self, seqs: Sequence[Seq], tokens: Tokens) -> None:
        """One token a row. Raises MemoryError when there are too few blocks for all rows; then none has grown."""
        copies = getattr(self.timed(self.allocator.append_step, seqs, tokens), "copies", ())
        self.num_block_copies += len(copies)
        self.any_changed |= len(copies) > 0 and not any(self.changed.values())

    def copied(self, seq: Seq, copies: Sequence[Any]) -> None:
        if len(copies):
            self.num_block_copies += len(copies)
            self.changed[seq] = True

    def free(self, seqs: Iterable[Seq], comes_back: bool = False) -> None:
        give_up = self.allocator.preempt if comes_back and "preempt" in self.can else self.allocator.free
        for seq in seqs:
            self.timed(give_up, seq)
            self.num_frees += 1
            self.changed.pop(seq, None)
            self.gone.append(seq)

    def forget(self) -> None:
        """What changed was looked at."""
        self.changed.clear()
        self.gone.clear()
        self.any_changed = False

    def timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        start = perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += perf_counter() - start
