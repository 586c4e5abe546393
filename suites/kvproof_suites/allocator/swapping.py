"""Sequences that move to the host and back: a second shadow pool stands for its memory, and tags follow the copies."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from kvproof_suites.allocator.writes import land, require_unread

if TYPE_CHECKING:
    from kvproof_suites.allocator.driver import Driver

Pairs = list[tuple[int, int]]


def swap_out(driver: Driver, seq: Hashable) -> None:
    """Move ``seq`` to the host. Every swapped sequence may take a host block for each of its own; more it may not."""
    land(driver, seq)
    swapped = sum(driver.blocks_for(len(record.tags)) for record in driver.swapped.values())
    fits = swapped + driver.blocks_for(len(driver.live[seq].tags)) <= driver.allocator.num_host_blocks
    copies = driver.operate("swap_out", seq, certain=fits)
    pairs = checked(driver, copies, driver.shadow.pool_blocks, driver.host.pool_blocks)
    record = driver.swapped[seq] = driver.live.pop(seq)
    record.num_reserved = 0
    record.host_blocks = tuple(destination for _, destination in pairs)
    for source, destination in pairs:
        require_kept(driver, seq, source, destination)
        driver.host.copy(source, destination, driver.shadow)
    driver.settle()


def swap_in(driver: Driver, seq: Hashable) -> None:
    """Bring ``seq`` back; whatever was not copied has to stand in the pool already."""
    record = driver.swapped[seq]
    fits = driver.blocks_for(len(record.tags)) <= driver.num_free()
    copies = driver.operate("swap_in", seq, certain=fits)
    pairs = checked(driver, copies, driver.host.pool_blocks, driver.shadow.pool_blocks)
    driver.live[seq] = driver.swapped.pop(seq)
    driver.refresh()
    for source, destination in pairs:
        require_unread(driver, [seq], destination)
        driver.shadow.copy(source, destination, driver.host)
    record.host_blocks = ()
    driver.settle()


def checked(driver: Driver, copies: Iterable[Sequence[int]], num_sources: int, num_destinations: int) -> Pairs:
    pairs = [(int(source), int(destination)) for source, destination in copies]
    inside = all(s in range(num_sources) and d in range(num_destinations) for s, d in pairs)
    call = driver.history.operations[-1]
    outside = f"allocator.{call} orders {pairs}, from a pool of {num_sources} blocks to one of {num_destinations}"
    driver.require("C2", inside, outside, fatal=True)
    destinations = [destination for _, destination in pairs]
    driver.require("C2", len(set(destinations)) == len(pairs), f"copies {pairs} depend on their order", fatal=True)
    return pairs


def require_kept(driver: Driver, seq: Hashable, source: int, destination: int) -> None:
    """The host block is free, or holds what is copied there already."""
    size = driver.block_size
    same = all(driver.shadow.read(source, i) == driver.host.read(destination, i) for i in range(size))
    for other, record in driver.swapped.items():
        if other != seq and not same and destination in record.host_blocks:
            driver.report("C2", f"swapping out {seq!r} overwrites host block {destination} of {other!r}")
