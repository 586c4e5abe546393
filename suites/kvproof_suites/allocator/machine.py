"""Random programs of operations: pools of a few blocks, prompts over three tokens, lengths around the block size.

Small on purpose: prefixes collide, the pool runs dry, blocks are evicted, and a failing program shrinks to a few lines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.live import Derailed
from kvproof_suites.allocator.programs import Program, Step, perform
from kvproof_suites.outcome import LawBroken

NUM_SYMBOLS = 3
MAX_LIVE = 6
KEYS = ((), ("adapter-1",), ("adapter-1", "salt"))
LENGTHS = ((0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (2, -1), (2, 0), (2, 1), (3, 1))
"""Lengths of a prompt as (blocks, tokens beyond)."""
CHUNKS = ((0, 1), (0, 1), (0, 1), (0, 0), (0, 2), (1, -1), (1, 0), (1, 1), (2, 0))
"""Lengths of a chunk to append; most are single tokens, as in decoding."""

WRITERS = ((), ("child",), ("parent", "child"), ("child", "parent"))
"""Branches that write right after a fork."""

texts = st.sampled_from((0, 1, 3, 4, 2, 5))
picks = st.integers(0, MAX_LIVE - 1)


def spelled(text: int, num_tokens: int) -> list[int]:
    """``num_tokens`` tokens in turn from the two base-3 digits of ``text``: few texts, so that prefixes are shared."""
    return [text // NUM_SYMBOLS ** (i % 2) % NUM_SYMBOLS for i in range(num_tokens)]


def machine_for(make_driver: Callable[[int, int], Driver]) -> type[AllocatorMachine]:
    """A machine of its own, so that what fails is kept for this test alone."""
    return type("AllocatorMachine", (AllocatorMachine,), {"make_driver": staticmethod(make_driver)})


def needs(capability: str) -> Callable[[Any], Any]:
    return precondition(lambda machine: machine.driver.live and machine.driver.can(capability))


class AllocatorMachine(RuleBasedStateMachine):
    """Rules are operations; what holds after each is the driver's business."""

    make_driver: Callable[[int, int], Driver]
    failing: Program | None = None
    driver: Driver

    def step(self, name: str, *args: Any) -> bool:
        """One operation, and whether there was room; a program that goes off the rails of another law ends quietly."""
        self.steps.append((name, args))
        try:
            perform(self.driver, self.steps[-1])
        except MemoryError:
            return False
        except Derailed:
            assume(False)
        except LawBroken:
            allocator = self.driver.allocator
            type(self).failing = Program(allocator.num_blocks, allocator.block_size, tuple(self.steps))
            raise
        return True

    def commit_if(self, wanted: bool, seq: Hashable) -> None:
        """An engine commits when the step has run, which is often before the next operation."""
        if wanted and self.driver.can("commit"):
            self.step("commit", seq)

    def pick(self, choice: int) -> Hashable:
        live = list(self.driver.live)
        return live[choice % len(live)]

    def new_id(self) -> str:
        return next(name for name in map("s{}".format, range(MAX_LIVE + 1)) if name not in self.known_ids())

    def known_ids(self) -> set[Hashable]:
        return {*self.driver.live, *self.driver.swapped}

    def num_tokens(self, length: tuple[int, int]) -> int:
        return max(0, length[0] * self.driver.block_size + length[1])

    @initialize(num_blocks=st.integers(1, 12), block_size=st.sampled_from((2, 1, 3, 4)))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.driver = self.make_driver(num_blocks, block_size)
        self.steps: list[Step] = []

    @precondition(lambda self: len(self.known_ids()) < MAX_LIVE)
    @rule(text=texts, length=st.sampled_from(LENGTHS), key=st.sampled_from(KEYS), commit=st.booleans())
    def allocate(self, text: int, length: tuple[int, int], key: tuple[str, ...], commit: bool) -> None:
        seq = self.new_id()
        if self.step("allocate", seq, spelled(text, self.num_tokens(length)), key):
            self.commit_if(commit, seq)

    @precondition(lambda self: self.driver.known and len(self.known_ids()) < MAX_LIVE)
    @rule(choice=picks, text=texts, more=st.sampled_from(CHUNKS))
    def send_again(self, choice: int, text: int, more: tuple[int, int]) -> None:
        known = list(self.driver.known)
        key, tokens = known[-1 - choice % len(known)]
        self.step("allocate", self.new_id(), [*tokens, *spelled(text, self.num_tokens(more))], key)

    @precondition(lambda self: self.driver.live)
    @rule(choice=picks, text=texts, length=st.sampled_from(CHUNKS), commit=st.booleans())
    def append(self, choice: int, text: int, length: tuple[int, int], commit: bool) -> None:
        seq = self.pick(choice)
        if self.step("append", seq, spelled(text, self.num_tokens(length))):
            self.commit_if(commit, seq)

    @precondition(lambda self: self.driver.live)
    @rule(choice=picks, text=texts, num_tokens=st.integers(1, 4))
    def decode(self, choice: int, text: int, num_tokens: int) -> None:
        """Single tokens in a row, each committed as an engine would."""
        seq = self.pick(choice)
        for token in spelled(text, num_tokens):
            if self.step("append", seq, [token]):
                self.commit_if(True, seq)

    @precondition(lambda self: self.driver.live)
    @rule(choice=picks)
    def free(self, choice: int) -> None:
        self.step("free", self.pick(choice))

    @needs("fork")
    @precondition(lambda self: len(self.known_ids()) < MAX_LIVE)
    @rule(choice=picks, writers=st.sampled_from(WRITERS), text=texts)
    def fork(self, choice: int, writers: tuple[str, ...], text: int) -> None:
        branches = {"parent": self.pick(choice), "child": self.new_id()}
        if self.step("fork", branches["parent"], branches["child"]):
            for writer in writers:
                self.step("append", branches[writer], spelled(text, 1))

    @needs("append_step")
    @rule(choice=picks, num_rows=st.integers(1, MAX_LIVE), text=texts, backwards=st.booleans(), commit=st.booleans())
    def append_step(self, choice: int, num_rows: int, text: int, backwards: bool, commit: bool) -> None:
        live = list(self.driver.live)
        start = choice % len(live)
        seqs = [*live[start:], *live[:start]][:num_rows]
        seqs = seqs[::-1] if backwards else seqs
        if self.step("append_step", seqs, spelled(text, len(seqs))) and commit and self.driver.can("commit_step"):
            self.step("commit_step", seqs)

    @needs("preempt")
    @rule(choice=picks)
    def preempt(self, choice: int) -> None:
        self.step("preempt", self.pick(choice))

    @needs("swap_out")
    @rule(choice=picks)
    def swap_out(self, choice: int) -> None:
        self.step("swap_out", self.pick(choice))

    @precondition(lambda self: self.driver.swapped)
    @rule(choice=picks)
    def swap_in(self, choice: int) -> None:
        swapped = list(self.driver.swapped)
        self.step("swap_in", swapped[choice % len(swapped)])

    @precondition(lambda self: self.driver.swapped)
    @rule(choice=picks)
    def free_swapped(self, choice: int) -> None:
        swapped = list(self.driver.swapped)
        self.step("free", swapped[choice % len(swapped)])

    @needs("truncate")
    @rule(choice=picks, back=st.integers(0, 6))
    def truncate(self, choice: int, back: int) -> None:
        seq = self.pick(choice)
        self.step("truncate", seq, max(0, len(self.driver.live[seq].tags) - back))

    @needs("commit")
    @rule(choice=picks)
    def commit(self, choice: int) -> None:
        self.step("commit", self.pick(choice))

    @needs("reserve")
    @rule(choice=picks, num_tokens=st.integers(0, 5))
    def reserve(self, choice: int, num_tokens: int) -> None:
        self.step("reserve", self.pick(choice), num_tokens)

    @precondition(lambda self: self.driver.can("reset_prefix_cache") and self.driver.committed)
    @precondition(lambda self: self.steps and self.steps[-1][0] in ("commit", "swap_out", "fork"))
    @rule()
    def reset_prefix_cache(self) -> None:
        self.step("reset_prefix_cache")

    @precondition(lambda self: self.driver.enforces("A6"))
    @rule(spare=st.integers(-1, 2))
    def try_admission(self, spare: int) -> None:
        num_tokens = self.driver.num_free() * self.driver.block_size + spare
        self.step("try_admission", max(0, num_tokens))

    @precondition(lambda self: self.driver.enforces("A2"))
    @rule()
    def drain(self) -> None:
        self.step("drain")

    @precondition(lambda self: self.driver.enforces("A5") and self.known_ids())
    @rule()
    def release_all(self) -> None:
        self.step("release_all")

    @precondition(lambda self: self.driver.live and self.driver.enforces("E5"))
    @rule(choice=picks)
    def violate(self, choice: int) -> None:
        self.step("violate", self.pick(choice))
