"""Drives an allocator as an engine would, and keeps the truth beside it: each sequence's tokens, and the shadow pool.

Only the laws that a test is about are enforced, so that an implementation fails the tests of the laws that it breaks
and no others. A failure prints the operations so far as a program.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from kvproof_impls.history import plain
from kvproof_suites.allocator import invariants
from kvproof_suites.allocator.demand import num_needed
from kvproof_suites.allocator.history import History
from kvproof_suites.allocator.live import Derailed, Known, Live, remember, spell
from kvproof_suites.allocator.shadow import ShadowPool, Tag, tags_of
from kvproof_suites.allocator.writes import check_hit, hand_out, land, make_copies
from kvproof_suites.outcome import LawBroken


class Driver:
    """The operations of the contract, each checked; errors that the contract allows pass through."""

    def __init__(self, allocator: Any, laws: Iterable[str], late: bool = False) -> None:
        self.allocator = allocator
        self.laws = frozenset(laws)
        self.checks = invariants.checks_of(self.laws)
        self.late = late
        self.block_size: int = allocator.block_size
        self.shadow = ShadowPool(allocator.pool_blocks, allocator.block_size)
        self.host = ShadowPool(getattr(allocator, "num_host_blocks", 0), allocator.block_size)
        self.window: int | None = getattr(allocator, "window", None)
        self.null_block: int | None = getattr(allocator, "null_block", None)
        self.seen: set[int] = set()
        """Blocks that tables have named so far."""
        self.live: dict[Hashable, Live] = {}
        self.swapped: dict[Hashable, Live] = {}
        self.tables: dict[Hashable, list[int]] = {}
        self.epoch = 0
        self.committed: set[Tag] = set()
        self.step_in_flight: tuple[Any, dict[str, list[Any]]] | None = None
        """The last step's batch, and what its tensors held when it was given."""
        self.known: Known = {}
        self._unused = itertools.count(1_000_000)
        self.history = History(allocator.num_blocks, allocator.block_size, late)

    def allocate(
        self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = (), max_tokens: int | None = None
    ) -> int:
        """``max_tokens`` goes to an allocator that reserves by it, of which ``can_allocate`` then can't be told."""
        tokens = list(tokens)
        told = max_tokens is not None and invariants.reserves_ahead(self)
        fits = not told and bool(self.ask("can_allocate", len(tokens)))
        more = [key, max_tokens] if told else [key] if key else []
        cached = self.whole("B2", "allocate", self.operate("allocate", seq, tokens, *more, certain=fits))
        if not fits and not cached and not told:
            self.report("A6", f"can_allocate({len(tokens)}) was False, and allocate took {len(tokens)} uncached tokens")
        self.live[seq] = Live(key, self.epoch, tags_of(key, self.epoch, tokens))
        remember(self.known, key, self.live[seq].tags)
        check_hit(self, seq, cached)
        hand_out(self, seq, cached, held=(), in_prompt=True)
        self.settle()
        return cached

    def append(self, seq: Hashable, tokens: Sequence[int]) -> list[tuple[int, int]]:
        land(self, seq)
        record, held = self.live[seq], self.tables[seq]
        length = len(record.tags)
        fits = num_needed(self, {seq: len(tokens)}) <= self.num_free()
        copies = self.operate("append", seq, list(tokens), certain=fits)
        make_copies(self, [seq], copies)
        record.tags += tags_of(record.key, record.epoch, tokens, record.prefix)
        hand_out(self, seq, length, held)
        self.settle()
        return list(copies)

    def reserve(self, seq: Hashable, num_tokens: int) -> list[tuple[int, int]]:
        land(self, seq)
        record = self.live[seq]
        fits = num_needed(self, {seq: num_tokens}) <= self.num_free()
        copies = self.operate("reserve", seq, num_tokens, certain=fits)
        make_copies(self, [seq], copies)
        record.num_reserved = max(record.num_reserved, len(record.tags) + num_tokens)
        self.settle()
        return list(copies)

    def fork(self, parent: Hashable, child: Hashable) -> list[tuple[int, int]]:
        land(self, parent)
        copies = self.operate("fork", parent, child, certain=self.num_free() > 0)
        record = self.live[parent]
        self.live[child] = Live(record.key, record.epoch, record.tags.copy(), first_query=record.first_query)
        make_copies(self, [child], copies)
        self.settle()
        return list(copies)

    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        land(self, seq)
        record, before = self.live[seq], self.tables[seq]
        elsewhere = {block for other, table in self.tables.items() if other != seq for block in table}
        kept = before[: self.blocks_for(num_tokens)]
        num_free = self.num_free() + len(set(before[len(kept) :]) - elsewhere)
        self.operate("truncate", seq, num_tokens, certain=True)
        del record.tags[num_tokens:]
        record.num_reserved = 0
        self.refresh()
        after = self.tables[seq], self.num_free()
        exact = after == (kept, num_free) or invariants.reserves_ahead(self)
        left = f"truncate({seq!r}, {num_tokens}) left the table {after[0]} and {after[1]} free blocks"
        self.require("D4", exact, f"{left}; a sequence that never grew further has {kept} and leaves {num_free}")
        self.settle()

    def commit(self, seq: Hashable) -> None:
        land(self, seq)
        self.operate("commit", seq, certain=True)
        self.mark_committed(seq)
        self.settle()

    def free(self, seq: Hashable) -> None:
        """Writes of ``seq`` that have not landed are dropped."""
        (self.live if seq in self.live else self.swapped).pop(seq)
        self.operate("free", seq, certain=True)
        self.settle()

    def preempt(self, seq: Hashable) -> None:
        """As ``free``; the sequence is to come back under its id."""
        self.live.pop(seq)
        self.operate("preempt", seq, certain=True)
        self.settle()

    def reset_prefix_cache(self) -> None:
        for seq in self.live:
            land(self, seq)
        self.operate("reset_prefix_cache", certain=True)
        self.epoch += 1
        self.known = {(key, tokens): tags_of(key, self.epoch, tokens) for key, tokens in self.known}
        self.settle()

    def fresh_tokens(self, num_tokens: int) -> list[int]:
        """Tokens that no prompt has had before, so that nothing of them is cached."""
        return list(itertools.islice(self._unused, num_tokens))

    def enforces(self, law: str) -> bool:
        return law in self.laws

    def can(self, capability: str) -> bool:
        return callable(getattr(self.allocator, capability, None))

    def num_free(self) -> int:
        return self.whole("A1", "num_free_blocks", self.ask("num_free_blocks"))

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def refresh(self) -> None:
        self.tables = {seq: self._table(seq) for seq in self.live}
        self.seen.update(*self.tables.values())

    def first_seen(self, seq: Hashable) -> int:
        """The first position of ``seq`` that a query may still see; it and all later ones need a block."""
        return 0 if self.window is None else max(0, self.live[seq].first_query - self.window + 1)

    def owned(self) -> set[int]:
        """Blocks that live tables name, but for the null block."""
        return {block for table in self.tables.values() for block in table} - {self.null_block}

    def mark_committed(self, seq: Hashable) -> None:
        """The complete blocks of ``seq`` may be found from now on."""
        record = self.live[seq]
        if record.epoch == self.epoch:
            self.committed.update(record.tags[: len(record.tags) // self.block_size * self.block_size])
            remember(self.known, record.key, record.tags)

    def report(self, law: str, what: str, fatal: bool = False, cause: Exception | None = None) -> None:
        """Raise LawBroken when ``law`` is enforced; otherwise go on, unless nothing can be judged any more."""
        if law in self.laws:
            self.history.law = law
            program = "\n    ".join(self.history.program(type(self.allocator).__name__))
            raise LawBroken(f"{law}: {what}\n  after\n    {program}", history=self.history) from cause
        if fatal:
            raise Derailed(f"{law}: {what}") from cause

    def whole(self, law: str, method: str, given: Any) -> int:
        """``given`` as an int, of whatever library; not ``int(given)``, which cuts a fraction off and reads a text."""
        try:
            return operator.index(given)
        except TypeError as error:
            self.report(law, f"{method} gave {given!r}, which is no whole number", fatal=True, cause=error)
            raise

    def require(self, law: str, holds: bool, what: str, fatal: bool = False) -> None:
        if not holds:
            self.report(law, what, fatal)

    def observe(self) -> dict[str, Any]:
        """All that can be seen of the allocator's state without changing it."""
        seen: dict[str, Any] = {f"table of {seq!r}": self._table(seq) for seq in self.live}
        seen["num_free_blocks"] = self.num_free()
        if self.can("cached_prefix"):
            for key, tokens in self.known:
                seen[f"cached_prefix({list(tokens)}, {key!r})"] = self.ask("cached_prefix", list(tokens), key)
        return seen

    def require_unchanged(self, law: str, call: str, before: dict[str, Any]) -> None:
        after = self.observe()
        changed = [f"{what} was {before[what]} and is {after[what]}" for what in before if before[what] != after[what]]
        self.require(law, not changed, f"{call} failed and yet changed the state: {'; '.join(changed)}")

    def ask(self, method: str, *args: Any) -> Any:
        """A query with valid arguments, which has no reason to fail."""
        try:
            return getattr(self.allocator, method)(*args)
        except Exception as error:
            what = f"{spell(method, args)} raised {type(error).__name__}: {error}"
            self.report("E5", what, fatal=True, cause=error)

    def operate(self, method: str, *args: Any, certain: bool) -> Any:
        """Call ``method`` with valid arguments. ``certain``: it has room, and a MemoryError would be a lie."""
        call = spell(method, args)
        before = self.observe() if "A6" in self.laws else None
        operation = self.history.add(method, args)
        try:
            returned = getattr(self.allocator, method)(*args)
            operation.returned = plain(returned)  # now: a step's tensors may be buffers
            return returned
        except MemoryError as error:
            operation.raised = "MemoryError"
            excused = invariants.reserves_ahead(self) and method != "allocate"
            self.require("A6", excused or not certain, f"{call} raised MemoryError although there was room: {error}")
            if before is not None:
                self.require_unchanged("A6", call, before)
            raise
        except Exception as error:
            operation.raised = type(error).__name__
            self.report("E5", f"{call} is valid and raised {type(error).__name__}: {error}", fatal=True, cause=error)

    def _table(self, seq: Hashable) -> list[int]:
        blocks = list(self.ask("block_table", seq))
        try:
            return list(map(operator.index, blocks))
        except TypeError:
            return [self.whole("A1", "block_table", block) for block in blocks]

    def settle(self) -> None:
        self.refresh()
        for check, law in self.checks.items():
            for fault in check(self):
                self.report(law, fault)
