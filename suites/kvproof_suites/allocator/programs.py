"""A run as a list of operations that can be replayed, and made as short as it still breaks the law.

Shrinking operations takes a second where shrinking the random choices behind them takes half a minute, and what is
left reads as a script.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvproof_suites.allocator import probes
from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.live import Derailed
from kvproof_suites.allocator.steps import append_step, commit_step
from kvproof_suites.allocator.swapping import swap_in, swap_out
from kvproof_suites.outcome import LawBroken

Step = tuple[str, tuple[Any, ...]]
"""Name of a method of Driver or of a function here, and its arguments."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        append_step,
        commit_step,
        swap_out,
        swap_in,
        probes.drain,
        probes.release_all,
        probes.try_admission,
        probes.violate,
    )
}
WITHOUT_SEQUENCE = {"reset_prefix_cache", "drain", "release_all", "try_admission"}
MAX_REPLAYS = 2_000


@dataclass(frozen=True)
class Program:
    num_blocks: int
    block_size: int
    steps: tuple[Step, ...]


def perform(driver: Driver, step: Step) -> None:
    name, args = step
    if name in FUNCTIONS:
        FUNCTIONS[name](driver, *args)
    else:
        getattr(driver, name)(*args)


def applies(driver: Driver, step: Step) -> bool:
    """Whether the contract allows the step now; shrinking removes what it rests on."""
    name, args = step
    if name in WITHOUT_SEQUENCE:
        return True
    known = {*driver.live, *driver.swapped}
    if name == "allocate":
        return args[0] not in known
    if name == "fork":
        return args[0] in driver.live and args[1] not in known
    if name in ("append_step", "commit_step"):
        rows = set(args[0])
        return bool(rows) and len(rows) == len(args[0]) and rows <= driver.live.keys()
    if name == "swap_in":
        return args[0] in driver.swapped
    if name == "free":
        return args[0] in known
    if name == "truncate" and args[0] in driver.live:
        return 0 <= args[1] <= len(driver.live[args[0]].tags)
    return args[0] in driver.live


def replay(program: Program, make_driver: Callable[[int, int], Driver]) -> LawBroken | None:
    """How ``program`` breaks the law that the driver enforces, or None."""
    driver = make_driver(program.num_blocks, program.block_size)
    for step in program.steps:
        if not applies(driver, step):
            continue
        try:
            perform(driver, step)
        except LawBroken as broken:
            return broken
        except MemoryError:
            continue
        except Derailed:
            return None
    return None


def shortest(program: Program, make_driver: Callable[[int, int], Driver]) -> LawBroken | None:
    """The failure of the shortest program that still fails, found by leaving things out; None if it does not repeat."""
    broken = replay(program, make_driver)
    replays, shrunk = 0, broken is not None
    while shrunk:
        shrunk = False
        for candidate in smaller(program):
            replays += 1
            found = replay(candidate, make_driver)
            if found is not None:
                program, broken, shrunk = candidate, found, True
                break
            if replays >= MAX_REPLAYS:
                return broken
    return broken


def smaller(program: Program) -> Iterator[Program]:
    """Simpler programs, the simplest first: halves and single steps left out, a smaller pool, shorter and plainer
    tokens."""
    steps = program.steps
    size = len(steps) // 2
    while size:
        for start in range(len(steps) - size, -1, -1):
            yield replace(program, steps=steps[:start] + steps[start + size :])
        size //= 2
    yield from (replace(program, steps=joined) for joined in joined_steps(steps))
    for num_blocks in range(1, program.num_blocks):
        yield replace(program, num_blocks=num_blocks)
    for index, (name, args) in enumerate(steps):
        for simpler in simpler_arguments(name, args):
            yield replace(program, steps=(*steps[:index], (name, simpler), *steps[index + 1 :]))


def joined_steps(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """One step fewer where two do the work of one: a prompt takes in what is appended later, a parent stands for its
    child."""
    for index, (name, args) in enumerate(steps):
        before, after = steps[:index], steps[index + 1 :]
        if name == "fork":
            parent, child = args
            yield before + tuple((other, renamed(others, child, parent)) for other, others in after)
        if name == "append":
            admitted = [i for i, (other, others) in enumerate(before) if other == "allocate" and others[0] == args[0]]
            for i in admitted[-1:]:
                seq, tokens, *key = before[i][1]
                yield (*before[:i], ("allocate", (seq, [*tokens, *args[1]], *key)), *before[i + 1 :], *after)


def renamed(args: tuple[Any, ...], old: Hashable, new: Hashable) -> tuple[Any, ...]:
    """``args`` with the sequence ``new`` where ``old`` was named, alone or as a row of a step."""
    rows = [[new if seq == old else seq for seq in arg] if isinstance(arg, list) else arg for arg in args[:1]]
    return tuple(new if isinstance(arg, str) and arg == old else arg for arg in (*rows, *args[1:]))


def simpler_arguments(name: str, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if name == "allocate" and args[2:] and args[2]:
        yield args[:2]
    if name in ("append_step", "commit_step"):
        seqs, tokens = args
        yield from (([*seqs[:i], *seqs[i + 1 :]], [*tokens[:i], *tokens[i + 1 :]]) for i in range(len(seqs)))
    if name in ("allocate", "append"):
        seq, tokens, *key = args
        yield from ((seq, tokens[:length], *key) for length in range(len(tokens)))
        yield from ((seq, [*tokens[:i], 0, *tokens[i + 1 :]], *key) for i, token in enumerate(tokens) if token)
