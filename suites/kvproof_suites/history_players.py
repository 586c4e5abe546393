"""Who performs the operations of a history: the driver, under all laws, or the bare allocator, for a long one.

Where an allocator has no ``append_step``, ``commit_step`` or ``preempt``, single calls do their work.
"""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from kvproof_impls.history import plain
from kvproof_suites.allocator import probes
from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.history import Operation
from kvproof_suites.allocator.programs import applies, perform
from kvproof_suites.allocator.shadow import shortened
from kvproof_suites.histories import HistoryError
from kvproof_suites.laws import LAWS

ABSENT = {"append_step": "append", "commit_step": "commit", "preempt": "free"}
MAX_SEQS = 12
"""Sequences that the state before a difference shows."""


class Judged:
    """With the shadow pool, up to the first broken law."""

    def __init__(self, allocator: Any, late: bool) -> None:
        self.driver = Driver(allocator, LAWS, late)
        self.allocator = allocator

    def knows(self, seq: Hashable) -> bool:
        return seq in self.driver.live

    def length(self, seq: Hashable) -> int:
        return len(self.driver.live[seq].tags)

    def tokens(self, seq: Hashable) -> Sequence[int]:
        return self.driver.live[seq].tokens

    def live(self) -> list[Hashable]:
        return list(self.driver.live)

    def swapped(self) -> list[Hashable]:
        return list(self.driver.swapped)

    def applies(self, operation: Operation) -> bool:
        return applies(self.driver, (operation.name, operation.args))

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        driver = self.driver
        del driver.history.operations[:-1]  # the file has them
        if name == "allocate" and len(args) > 4:
            raise HistoryError("the laws do not know items; compare without them, with --compare-only")
        perform(driver, (name, args))
        return driver.history.operations[-1].returned

    def refused(self, error: str, operation: Operation) -> str:
        probes.refused(self.driver, getattr(builtins, error), operation.name, *operation.args)
        return error

    def finish(self) -> None:
        probes.release_all(self.driver)


class Bare:
    """Without laws: what is kept of a sequence is its length."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self._lengths: dict[Hashable, int] = {}
        self._swapped: dict[Hashable, int] = {}

    def knows(self, seq: Hashable) -> bool:
        return seq in self._lengths

    def length(self, seq: Hashable) -> int:
        return self._lengths[seq]

    def tokens(self, seq: Hashable) -> Sequence[int]:
        return ()

    def live(self) -> list[Hashable]:
        return list(self._lengths)

    def swapped(self) -> list[Hashable]:
        return list(self._swapped)

    def applies(self, operation: Operation) -> bool:
        name, args = operation.name, operation.args
        if name in ("reset_prefix_cache", "can_allocate"):
            return True
        if name in ("append_step", "commit_step"):
            return len(set(args[0])) == len(args[0]) and all(map(self.knows, args[0]))
        new = {"allocate": args[0], "fork": args[-1]}.get(name)
        if new is not None and (new in self._lengths or new in self._swapped):
            return False
        if name == "swap_in":
            return args[0] in self._swapped
        if name == "truncate" and self.knows(args[0]):
            return 0 <= args[1] <= self._lengths[args[0]]
        return name == "allocate" or self.knows(args[0]) or (name == "free" and args[0] in self._swapped)

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "allocate":
            returned = allocate(self.allocator, *args)
            self._lengths[args[0]] = len(args[1])
            return int(returned)
        returned = getattr(self.allocator, name)(*args)
        if name == "append":
            self._lengths[args[0]] += len(args[1])
        elif name == "append_step":
            for seq in args[0]:
                self._lengths[seq] += 1
        elif name == "fork":
            self._lengths[args[1]] = self._lengths[args[0]]
        elif name == "truncate":
            self._lengths[args[0]] = args[1]
        elif name in ("free", "preempt"):
            (self._lengths if args[0] in self._lengths else self._swapped).pop(args[0])
        elif name == "swap_out":
            self._swapped[args[0]] = self._lengths.pop(args[0])
        elif name == "swap_in":
            self._lengths[args[0]] = self._swapped.pop(args[0])
        return plain(returned)

    def refused(self, error: str, operation: Operation) -> str:
        try:
            getattr(self.allocator, operation.name)(*operation.args)
        except Exception as raised:
            return type(raised).__name__
        return "nothing"

    def finish(self) -> None:
        """There is nothing to judge."""


def allocate(
    allocator: Any, seq: Hashable, tokens: Any, key: Any = None, max_tokens: int | None = None, items: Any = None
) -> Any:
    """With what this allocator takes: only one that reserves by a length is told it."""
    named = {} if max_tokens is None or getattr(allocator, "reserves", None) is None else {"max_tokens": max_tokens}
    named |= {} if items is None else {"items": items}
    return allocator.allocate(seq, tokens, *([key] if key else []), **named)


Player = Judged | Bare


def state(player: Player, named: Sequence[Hashable]) -> Iterator[str]:
    """Free blocks, then the sequences, those of ``named`` first."""
    allocator = player.allocator
    yield f"  {allocator.num_free_blocks()} of {allocator.num_blocks} blocks are free"
    live = player.live()
    order = [seq for seq in dict.fromkeys([*named, *live]) if player.knows(seq)]
    for seq in order[:MAX_SEQS]:
        table = [int(block) for block in allocator.block_table(seq)]
        tokens = f" {shortened(player.tokens(seq))}" if player.tokens(seq) else ""
        yield f"  {seq!r}: {player.length(seq)} tokens{tokens}, blocks {shortened(table)}"
    if len(order) > MAX_SEQS:
        yield f"  and {len(order) - MAX_SEQS} more sequences"
    for seq in player.swapped()[:MAX_SEQS]:
        yield f"  {seq!r}: swapped out"
