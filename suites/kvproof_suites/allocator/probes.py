"""Questions that only an experiment answers: what can be handed out, what is refused, what is released."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.live import spell


def drain(driver: Driver) -> None:
    """Hand out all that is free, and take it back: no block comes twice, none is one that a live sequence owns (A2)."""
    owner: dict[int, object] = {block: seq for seq, table in driver.tables.items() for block in table}
    takers: list[str] = []
    while len(takers) <= driver.allocator.num_blocks and driver.ask("can_allocate", driver.block_size):
        taker = f"drain{len(takers)}"
        driver.allocate(taker, driver.fresh_tokens(driver.block_size))
        takers.append(taker)
        for block in driver.tables[taker]:
            driver.require("A2", block not in owner, f"block {block} of {owner.get(block)!r} went to {taker!r} as well")
            owner[block] = taker
    for taker in takers:
        driver.free(taker)


def release_all(driver: Driver) -> None:
    """Every sequence leaves, and the pool is whole again (A5)."""
    for seq in [*driver.live, *driver.swapped]:
        driver.free(seq)
    free, every = driver.num_free(), driver.allocator.num_blocks
    driver.require("A5", free == every, f"every sequence was freed, and {free} of {every} blocks are free")


def try_admission(driver: Driver, num_tokens: int) -> None:
    """can_allocate says what allocate then does with tokens of which nothing is cached (A6)."""
    fits = driver.ask("can_allocate", num_tokens)
    try:
        driver.allocate("probe", driver.fresh_tokens(num_tokens))
    except MemoryError:
        driver.require("A6", not fits, f"can_allocate({num_tokens}) is True and allocate raised MemoryError")
        return
    driver.require("A6", bool(fits), f"can_allocate({num_tokens}) is False and allocate succeeded")
    driver.free("probe")


def refused(driver: Driver, expected: type[Exception], method: str, *args: Any) -> None:
    """The call breaks the contract: it must raise ``expected``, and change nothing (E5)."""
    call, before = spell(method, args), driver.observe()
    driver.history.add(method, args, must_raise=expected.__name__)
    try:
        getattr(driver.allocator, method)(*args)
    except expected:
        driver.require_unchanged("E5", call, before)
    except Exception as error:
        what = f"{call} must raise {expected.__name__}; it raised {type(error).__name__}: {error}"
        driver.report("E5", what, fatal=True, cause=error)
    else:
        driver.report("E5", f"{call} must raise {expected.__name__}; it succeeded", fatal=True)


def violate(driver: Driver, seq: Hashable) -> None:
    """Everything that the contract forbids while ``seq`` is live (E5)."""
    for expected, method, args in violations(seq, len(driver.live[seq].tags)):
        if driver.can(method):
            refused(driver, expected, method, *args)


def violations(known: object, num_tokens: int) -> Iterator[tuple[type[Exception], str, tuple[Any, ...]]]:
    """Calls that the contract forbids while ``known`` is live with ``num_tokens`` tokens, and the error of each."""
    for method, args in UNKNOWN.items():
        yield KeyError, method, ("ghost", *args)
    yield KeyError, "allocate", (known, [0])
    yield KeyError, "fork", (known, known)
    yield KeyError, "swap_in", (known,)
    yield KeyError, "append_step", ([known, "ghost"], [0, 0])
    yield KeyError, "append_step", ([known, known], [0, 0])
    yield ValueError, "append_step", ([known], [])
    yield ValueError, "can_allocate", (-1,)
    yield ValueError, "reserve", (known, -1)
    yield ValueError, "truncate", (known, -1)
    yield ValueError, "truncate", (known, num_tokens + 1)


UNKNOWN: dict[str, tuple[Any, ...]] = {
    "append": ([0],),
    "block_table": (),
    "free": (),
    "fork": ("child",),
    "commit": (),
    "reserve": (1,),
    "truncate": (0,),
    "swap_out": (),
    "swap_in": (),
}
"""Operations on a sequence, with the arguments that follow its id."""
